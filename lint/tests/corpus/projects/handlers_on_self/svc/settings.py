# ruff: noqa
from pydantic_settings import BaseSettings


class Settings(BaseSettings):
    topic: str = "ledger"
    bootstrap: str = "localhost:9092"
    group: str = "ledger"
