# ruff: noqa
from celery import Celery
from billing import settings

celery_app = Celery("billing", broker=settings.BROKER_URL, backend=settings.RESULT_BACKEND)
celery_app.autodiscover_tasks(["billing"])
