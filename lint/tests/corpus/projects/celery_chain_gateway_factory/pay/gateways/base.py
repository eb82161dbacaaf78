# ruff: noqa
from abc import ABC, abstractmethod
class Gateway(ABC):
    @abstractmethod
    def charge(self, customer, cents): ...
