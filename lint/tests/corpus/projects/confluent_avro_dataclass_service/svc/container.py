# ruff: noqa
from functools import cached_property
from pymongo import MongoClient
from svc.services import UsageService
from svc.settings import Settings
class Container:
    def __init__(self, settings: Settings):
        self.settings = settings
    @cached_property
    def mongo(self):
        return MongoClient(self.settings.mongo)
    @cached_property
    def usage_service(self):
        return UsageService(self.mongo.get_database("usage"))
