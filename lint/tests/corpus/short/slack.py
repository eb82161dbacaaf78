# ruff: noqa
# expect file: P11
from slack_sdk import WebClient
from celery import shared_task
slack = WebClient(token="x")
@shared_task
def alert(text):
    slack.chat_postMessage(channel="#x", text=text)
