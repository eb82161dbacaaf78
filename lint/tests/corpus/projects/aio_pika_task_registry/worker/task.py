# ruff: noqa
from abc import ABC, abstractmethod
import httpx

TASK_REGISTRY = {}

class Task(ABC):
    type: str
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        TASK_REGISTRY[cls.type] = cls()

    @abstractmethod
    async def run(self, payload: dict) -> None: ...

class NotifyPartner(Task):
    type = "notify.partner"
    async def run(self, payload):
        async with httpx.AsyncClient() as client:
            await client.post(payload["callback_url"], json=payload)
