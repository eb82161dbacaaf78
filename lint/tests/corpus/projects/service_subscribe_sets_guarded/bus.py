# ruff: noqa
# expect file: clean
import json
import redis
class Bus:
    def __init__(self):
        self.r = redis.Redis()
        self.subs = {}
    def on(self, stream, fn):
        self.subs[stream] = fn
    def run(self):
        while True:
            for stream, entries in self.r.xreadgroup("g", "c", {s: ">" for s in self.subs}, block=0):
                for i, f in entries:
                    self.subs[stream](json.loads(f["d"]))
                    self.r.xack(stream, "g", i)
