# ruff: noqa
# expect file: clean
from celery import shared_task
from prometheus_client import Counter
import statsd, logging
C = Counter("x", "y")
stats = statsd.StatsClient()
@shared_task
def m(order_id):
    C.inc()
    stats.incr("orders")
    logging.getLogger(__name__).info("x")
