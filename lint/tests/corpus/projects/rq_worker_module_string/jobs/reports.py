# ruff: noqa
from utils.mailer import mailer
def email_report(user_id):
    mailer.send(to=f"user{user_id}@example.com", subject="Report", body="…")
