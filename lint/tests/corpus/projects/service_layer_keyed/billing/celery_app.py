# ruff: noqa
from celery import Celery

celery_app = Celery("billing", broker="redis://localhost:6379/0")
