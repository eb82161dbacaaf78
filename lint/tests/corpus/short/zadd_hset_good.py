# ruff: noqa
# expect file: clean
import redis
from dramatiq import actor

r = redis.Redis()


@actor
def scored(player, score):
    r.zadd("scores", {player: score})
    r.hset(f"player:{player}", mapping={"score": score})
