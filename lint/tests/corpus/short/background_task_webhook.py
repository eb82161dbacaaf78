# ruff: noqa
# expect file: EO201, P11
from fastapi import BackgroundTasks, FastAPI
from twilio.rest import Client

app = FastAPI()
sms = Client()


def text(phone):
    sms.messages.create(to=phone, from_="+1", body="x")


@app.post("/webhooks/arrived")
async def arrived(event: dict, tasks: BackgroundTasks):
    tasks.add_task(text, event["phone"])
    return {}
