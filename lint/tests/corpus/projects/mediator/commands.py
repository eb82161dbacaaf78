# ruff: noqa
from dataclasses import dataclass


@dataclass
class AddPoints:
    member: str
    points: int
