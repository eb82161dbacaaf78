# ruff: noqa
from taskiq import InMemoryBroker

from . import bonus, labels

broker = InMemoryBroker()
for plugin in (bonus, labels):
    plugin.install(broker)
