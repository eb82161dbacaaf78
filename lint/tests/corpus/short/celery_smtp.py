# ruff: noqa
# expect file: P11
import smtplib
from email.message import EmailMessage
from celery import shared_task
@shared_task
def send_welcome_email(address):
    msg = EmailMessage()
    msg["To"] = address
    msg.set_content("hi")
    with smtplib.SMTP("localhost") as s:
        s.send_message(msg)
