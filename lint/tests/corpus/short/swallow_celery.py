# ruff: noqa
# expect file: EO202
from celery import shared_task
import logging, requests
logger = logging.getLogger(__name__)
@shared_task
def sync(order_id):
    try:
        requests.put(f"https://erp/{order_id}", json={"s": 1})
    except Exception as e:
        logger.error(f"sync failed: {e}")
        return None
