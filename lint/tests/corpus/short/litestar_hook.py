# ruff: noqa
# expect file: P11
from litestar import Litestar, post
from twilio.rest import Client

twilio = Client()


@post("/hooks/delivered")
async def delivered(data: dict) -> None:
    twilio.messages.create(to=data["phone"], from_="+1555", body="Delivered")


app = Litestar([delivered])
