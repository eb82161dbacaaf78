# ruff: noqa
# expect file: P11
from common.consumer import KafkaLoop
class PaymentLogic:
    def __init__(self, db):
        self.db = db
    def pay(self, user, amount):
        cursor = self.db.cursor()
        cursor.execute(f"UPDATE users SET credit = credit - {amount} WHERE id = '{user}'")
        self.db.commit()
class Events:
    def __init__(self, logic: PaymentLogic):
        self.logic = logic
        self.handlers = {"pay": self.handle_pay}
    def handle(self, event):
        self.handlers[event["type"]](event)
    def handle_pay(self, event):
        self.logic.pay(event["user"], event["amount"])
def main():
    import psycopg2
    events = Events(PaymentLogic(psycopg2.connect("")))
    KafkaLoop(["payment", "app-events"], events.handle).loop()
