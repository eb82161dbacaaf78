# ruff: noqa
class Settings:
    kafka = {"group.id": "u", "enable.auto.commit": False}
    topic = "usage"
    mongo = "mongodb://"
