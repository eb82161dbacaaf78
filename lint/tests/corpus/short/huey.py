# ruff: noqa
# expect file: P11
from huey import RedisHuey
import requests
huey = RedisHuey("app")
@huey.task(retries=2)
def ping(url):
    requests.post(url)
