# ruff: noqa
# expect file: P11
from twilio.rest import Client
from .consumer import EventConsumer

consumer = EventConsumer({"bootstrap.servers": "k", "group.id": "sms"}, ["orders"])
twilio = Client()

@consumer.on("order.shipped")
def notify(data):
    twilio.messages.create(to=data["phone"], from_="+1555", body="Shipped!")

if __name__ == "__main__":
    consumer.run()
