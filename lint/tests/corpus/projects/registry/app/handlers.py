# ruff: noqa
from app.bus import on
from app.mail import send_mail


@on("user.created")
def greet(event):
    send_mail(event["email"], "Welcome")
