# ruff: noqa
from collections import defaultdict

HANDLERS = defaultdict(list)


def on(event_type):
    def register(fn):
        HANDLERS[event_type].append(fn)
        return fn

    return register
