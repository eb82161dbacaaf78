# ruff: noqa
# expect file: P11
from procrastinate import App, PsycopgConnector
import sendgrid
app = App(connector=PsycopgConnector())
sg = sendgrid.SendGridAPIClient("k")
@app.task(queue="emails")
async def welcome(user_email):
    sg.client.mail.send.post(request_body={"to": user_email})
