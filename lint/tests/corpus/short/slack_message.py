# ruff: noqa
# expect file: P11
from slack_sdk import WebClient
from celery import shared_task

slack = WebClient("xoxb")


@shared_task(acks_late=True)
def deployed(version):
    slack.chat_postMessage(channel="#ops", text=f"{version} is out")
