# ruff: noqa
# expect file: EO202
import logging

import requests
from celery import Celery

app = Celery(__name__)
log = logging.getLogger(__name__)


@app.task(acks_late=True)
def push_profile(user_id: int, profile: dict) -> bool:
    try:
        response = requests.put(f"https://crm.example.com/users/{user_id}", json=profile, timeout=5)
        response.raise_for_status()
    except requests.RequestException as exc:
        log.warning("crm is down: %s", exc)
        return False
    return True
