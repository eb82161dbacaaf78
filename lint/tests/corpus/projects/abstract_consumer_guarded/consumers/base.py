# ruff: noqa
import abc
import json

from django.db import IntegrityError, transaction
from kafka import KafkaConsumer

from inbox.models import InboxMessage


class IdempotentConsumer(abc.ABC):
    topic: str

    def run(self):
        for message in KafkaConsumer(self.topic, group_id="app", enable_auto_commit=False):
            self._process(json.loads(message.value))

    def _process(self, event):
        try:
            with transaction.atomic():
                InboxMessage.objects.create(message_id=event["id"])
                self.handle(event)
        except IntegrityError:
            return

    @abc.abstractmethod
    def handle(self, event): ...
