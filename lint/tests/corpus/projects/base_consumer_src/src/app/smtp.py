# ruff: noqa
from email.message import EmailMessage

import aiosmtplib


async def deliver(to, text):
    message = EmailMessage()
    message["To"] = to
    message.set_content(text)
    await aiosmtplib.send(message, hostname="mail")
