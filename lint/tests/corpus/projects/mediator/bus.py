# ruff: noqa
class Mediator:
    def __init__(self):
        self._handlers = {}

    def register(self, command, handler):
        self._handlers[command] = handler

    def send(self, command):
        return self._handlers[type(command)](command)
