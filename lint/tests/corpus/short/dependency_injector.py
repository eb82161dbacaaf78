# ruff: noqa
# expect file: P11
import httpx
from dependency_injector import containers, providers
from dependency_injector.wiring import Provide, inject
from faststream.kafka import KafkaBroker

broker = KafkaBroker()


class Crm:
    def __init__(self, url):
        self.client = httpx.Client(base_url=url)

    def note(self, customer, text):
        self.client.post("/notes", json={"customer": customer, "text": text})


class Container(containers.DeclarativeContainer):
    crm = providers.Singleton(Crm, url="https://crm.example")


@broker.subscriber("calls")
@inject
async def call_ended(event: dict, crm: Crm = Provide[Container.crm]):
    crm.note(event["customer"], "called")
