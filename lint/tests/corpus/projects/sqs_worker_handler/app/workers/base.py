# ruff: noqa
import threading
class BaseWorker(threading.Thread):
    def __init__(self, name):
        super().__init__(name=name, daemon=True)
        self.stopped = threading.Event()
