# ruff: noqa
# expect file: P11
from celery import Celery
from twilio.rest import Client
app = Celery('tasks', broker='redis://localhost:6379/0')
client = Client(ACCOUNT_SID, AUTH_TOKEN)
@app.task(name="notify.sms")
def send_sms_task(user_id, text):
    user = get_user(user_id)
    client.messages.create(body=text, from_='+15005550006', to=user.phone)
