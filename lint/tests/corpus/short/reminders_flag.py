# ruff: noqa
# expect file: EO101, EO103
from datetime import timedelta

from celery import shared_task
from django.core.mail import send_mail
from django.utils import timezone

from crm.models import Activity


@shared_task(bind=True)
def send_reminders(self, minutes=15):
    soon = timezone.now() + timedelta(minutes=minutes)
    for activity in Activity.objects.filter(reminder_at__lte=soon, reminder_sent=False):
        send_mail("Reminder", activity.title, None, [activity.owner_email])
        activity.reminder_sent = True
        activity.save(update_fields=["reminder_sent"])
