# ruff: noqa
# expect file: clean
import dramatiq
from client import Api
api = Api("https://x")
@dramatiq.actor
def charge(order_id, cents):
    api.charge(order_id, cents)
