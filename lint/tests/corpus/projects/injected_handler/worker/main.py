# ruff: noqa
# expect file: P11
import requests

from worker.sqs import SqsConsumer


def notify(body: dict) -> None:
    requests.post("https://chat.example/messages", json={"text": body["text"]}, timeout=5)


if __name__ == "__main__":
    SqsConsumer("https://sqs/1/chat", notify).run()
