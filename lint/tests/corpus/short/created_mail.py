# ruff: noqa
# expect file: clean
from celery import shared_task
from django.core.mail import send_mail
from .models import Customer
@shared_task
def import_customer(external_id, email):
    customer, created = Customer.objects.update_or_create(external_id=external_id, defaults={"email": email})
    if created:
        send_mail("welcome", "hi", None, [email])
