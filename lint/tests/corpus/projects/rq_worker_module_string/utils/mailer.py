# ruff: noqa
import smtplib
from email.message import EmailMessage
class Mailer:
    def send(self, to, subject, body):
        msg = EmailMessage()
        msg["To"], msg["Subject"] = to, subject
        msg.set_content(body)
        server = smtplib.SMTP("localhost", 25)
        try:
            server.send_message(msg)
        finally:
            server.quit()
mailer = Mailer()
