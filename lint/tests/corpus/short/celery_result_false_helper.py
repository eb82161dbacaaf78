# ruff: noqa
# expect file: clean
import requests
from celery import shared_task


def put(user_id, data):
    try:
        requests.put(f"https://crm.example/users/{user_id}", json=data, timeout=5).raise_for_status()
    except requests.RequestException:
        return False
    return True


@shared_task(bind=True)
def sync(self, user_id, data):
    if not put(user_id, data):
        raise self.retry(countdown=60)
