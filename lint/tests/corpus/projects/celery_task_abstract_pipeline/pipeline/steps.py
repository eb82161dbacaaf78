# ruff: noqa
from abc import ABC, abstractmethod
import requests
class Step(ABC):
    @abstractmethod
    def execute(self, context: dict) -> dict: ...
class ReserveStock(Step):
    def execute(self, context):
        r = requests.post("http://stock/reservations", json={"sku": context["sku"]}, timeout=3)
        return {**context, "reservation": r.json()["id"]}
class Log(Step):
    def execute(self, context):
        print(context)
        return context
class Pipeline:
    def __init__(self, *steps: Step):
        self.steps = steps
    def run(self, context):
        for step in self.steps:
            context = step.execute(context)
        return context
