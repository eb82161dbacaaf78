# ruff: noqa
# expect file: EO104
from celery import shared_task
from django.core.mail import send_mail

from app.models import SentMail


@shared_task(bind=True, max_retries=3)
def welcome(self, event_id, email):
    _, created = SentMail.objects.get_or_create(event_id=event_id)
    if not created:
        return "duplicate"
    try:
        send_mail("Welcome", "Hello", None, [email])
    except OSError as exc:
        raise self.retry(exc=exc, countdown=60)
