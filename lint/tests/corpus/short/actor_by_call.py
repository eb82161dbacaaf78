# ruff: noqa
# expect file: P11
import dramatiq
import psycopg


class Posts:
    def __init__(self, dsn):
        self.dsn = dsn

    def like(self, post):
        with psycopg.connect(self.dsn) as conn:
            conn.execute("UPDATE posts SET likes = likes + 1 WHERE id = %s", (post,))


posts = Posts("dbname=x")
like = dramatiq.actor(queue_name="likes", max_retries=3)(posts.like)
