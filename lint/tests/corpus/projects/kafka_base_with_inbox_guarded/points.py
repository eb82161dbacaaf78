# ruff: noqa
# expect file: clean
from base import IdempotentConsumer
class Points(IdempotentConsumer):
    def apply(self, conn, event):
        conn.execute("UPDATE members SET points = points + %s WHERE id = %s", (event["points"], event["member"]))
