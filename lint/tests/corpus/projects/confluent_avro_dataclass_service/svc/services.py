# ruff: noqa
class UsageService:
    def __init__(self, db):
        self.collection = db["usage"]
    def record(self, usage):
        self.collection.update_one({"tenant": usage["tenant"]}, {"$inc": {"units": usage["units"]}}, upsert=True)
