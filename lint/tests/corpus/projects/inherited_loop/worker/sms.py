# ruff: noqa
# expect file: P11
from twilio.rest import Client

from worker.base import BaseWorker


class SmsWorker(BaseWorker):
    queue_url = "https://sqs.eu-west-1.amazonaws.com/1/sms"

    def __init__(self) -> None:
        super().__init__()
        self.twilio = Client("sid", "token")

    def process(self, body: dict) -> None:
        self.twilio.messages.create(to=body["phone"], from_="+15005550006", body=body["text"])


if __name__ == "__main__":
    SmsWorker().run()
