# ruff: noqa
# expect file: P11
import smtplib
from email.message import EmailMessage

from celery import shared_task


def deliver(to, subject):
    message = EmailMessage()
    message["To"] = to
    message["Subject"] = subject
    with smtplib.SMTP("mail") as smtp:
        smtp.send_message(message)


@shared_task
def welcome(email):
    deliver(email, "Welcome")
