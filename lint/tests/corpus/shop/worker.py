# ruff: noqa
"""A project of several files: the application object is here."""

from celery import Celery

celery = Celery("shop")
celery.conf.update(task_acks_late=True)
