# ruff: noqa
"""Home-made guards on Redis."""

import datetime as dt
import hashlib
import json
import time

import redis
import requests
from celery import shared_task
from twilio.rest import Client

r = redis.Redis.from_url("redis://localhost/3")
sms = Client("sid", "token")
TWO_WEEKS = 14 * 24 * 60 * 60


@shared_task
def sms_nx(message_id, phone):  # expect: clean
    if not r.set(f"sms:{message_id}", "1", nx=True, ex=TWO_WEEKS):
        return "duplicate"
    sms.messages.create(to=phone, from_="+1", body="hi")


@shared_task
def sms_nx_positional(message_id, phone):  # expect: clean
    first = r.set(f"sms:{message_id}", "1", dt.timedelta(days=15), nx=True)
    if first is None:
        return
    sms.messages.create(to=phone, from_="+1", body="hi")


@shared_task
def sms_nx_forever(message_id, phone):  # expect: EO105
    if r.setnx(f"sms:{message_id}", "1"):
        sms.messages.create(to=phone, from_="+1", body="hi")


@shared_task
def sms_nx_expire_later(message_id, phone):  # expect: clean
    key = f"sms:{message_id}"
    if r.setnx(key, "1"):
        r.expire(key, TWO_WEEKS)
        sms.messages.create(to=phone, from_="+1", body="hi")


@shared_task
def sms_get_then_set(message_id, phone):  # expect: EO105
    key = f"sms:{message_id}"
    if r.get(key):
        return
    r.set(key, "1", ex=TWO_WEEKS)
    sms.messages.create(to=phone, from_="+1", body="hi")


@shared_task
def sms_exists_act_set(message_id, phone):  # expect: EO101, EO103
    key = f"sms:{message_id}"
    if r.exists(key):
        return
    sms.messages.create(to=phone, from_="+1", body="hi")
    r.setex(key, TWO_WEEKS, "1")


@shared_task
def sms_set_without_nx_checked(message_id, phone):  # expect: EO105
    if not r.set(f"sms:{message_id}", "1", ex=TWO_WEEKS):
        return
    sms.messages.create(to=phone, from_="+1", body="hi")


@shared_task(bind=True, autoretry_for=(requests.RequestException,), retry_backoff=True)
def post_marked_too_early(self, message_id, order):  # expect: EO104
    if not r.set(f"post:{message_id}", "1", nx=True, ex=TWO_WEEKS):
        return
    requests.post("https://erp.example/orders", json=order, timeout=5).raise_for_status()


@shared_task(bind=True, autoretry_for=(requests.RequestException,), retry_backoff=True)
def post_released_on_failure(self, message_id, order):  # expect: clean
    key = f"post:{message_id}"
    if not r.set(key, "1", nx=True, ex=TWO_WEEKS):
        return
    try:
        requests.post("https://erp.example/orders", json=order, timeout=5).raise_for_status()
    except Exception:
        r.delete(key)
        raise


@shared_task
def post_marked_in_set_first(message_id, order):  # expect: EO104, EO105
    if r.sismember("orders:seen", message_id):
        return
    r.sadd("orders:seen", message_id)
    requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task
def post_with_sadd_answer(message_id, order):  # expect: EO105
    if r.sadd("orders:seen", message_id) == 0:
        return
    requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task
def post_with_counter(message_id, order):  # expect: EO105
    if r.incr(f"order:{message_id}:deliveries") > 1:
        return
    requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task
def post_keyed_by_hash(order):  # expect: EO302
    digest = hashlib.sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()
    if not r.set(f"order:{digest}", 1, nx=True, ex=TWO_WEEKS):
        return
    requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task
def post_keyed_by_time(order):  # expect: EO301
    if not r.set(f"order:{order['id']}:{int(time.time())}", 1, nx=True, ex=TWO_WEEKS):
        return
    requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task
def post_keyed_by_who_and_what(order):  # expect: EO302
    key = f"{order['customer_id']}:{order['sku']}:{order['quantity']}"
    if not r.set(key, 1, nx=True, ex=TWO_WEEKS):
        return
    requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task(bind=True, max_retries=48, default_retry_delay=1800)
def short_memory(self, message_id, order):  # expect: EO106
    if not r.set(f"order:{message_id}", 1, nx=True, ex=300):
        return
    requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task
def lock_is_no_guard(message_id, order):  # expect: P11
    with r.lock(f"lock:{message_id}", timeout=30):
        requests.post("https://erp.example/orders", json=order, timeout=5)


@shared_task
def lock_and_check(message_id, order):  # expect: clean
    with r.lock(f"lock:{message_id}", timeout=30):
        if r.get(f"done:{message_id}"):
            return
        requests.post("https://erp.example/orders", json=order, timeout=5)
        r.set(f"done:{message_id}", 1, ex=TWO_WEEKS)


@shared_task
def counts_page_views(page):  # expect: P11
    r.incr(f"views:{page}")


@shared_task
def caches_a_value(product_id, price):  # expect: clean
    r.set(f"price:{product_id}", price)


seen = set()


@shared_task
def remembers_in_memory(message_id, phone):  # expect: P11
    if message_id in seen:
        return
    sms.messages.create(to=phone, from_="+1", body="hi")
    seen.add(message_id)


@shared_task
def remembers_in_memory_first(message_id, phone):  # expect: EO104
    if message_id in seen:
        return
    seen.add(message_id)
    sms.messages.create(to=phone, from_="+1", body="hi")
