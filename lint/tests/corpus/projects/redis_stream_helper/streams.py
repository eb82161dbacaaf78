# ruff: noqa
import redis

def get_redis_client() -> redis.Redis:
    return redis.Redis(decode_responses=True)

def read_group(r, stream, group, consumer):
    response = r.xreadgroup(group, consumer, {stream: ">"}, count=1, block=2000)
    for _, entries in response or []:
        yield from entries
