# ruff: noqa
import smtplib


def send_mail(to, subject):
    with smtplib.SMTP("localhost") as s:
        s.sendmail("a@b.c", [to], subject)
