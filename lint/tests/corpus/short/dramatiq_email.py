# ruff: noqa
# expect file: P11
import dramatiq
from sendgrid import SendGridAPIClient
from sendgrid.helpers.mail import Mail
@dramatiq.actor(max_retries=3)
def email_user(user_id, subject):
    sg = SendGridAPIClient(os.environ["SENDGRID"])
    sg.send(Mail(from_email="a@b.c", to_emails=lookup(user_id), subject=subject))
