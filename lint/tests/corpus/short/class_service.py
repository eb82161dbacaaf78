# ruff: noqa
# expect file: P11
import pika, json, psycopg2
class LedgerRepo:
    def __init__(self, conn): self.conn = conn
    def book(self, account, amount):
        with self.conn.cursor() as cur:
            cur.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (account, amount))
class Service:
    def __init__(self, repo: LedgerRepo): self.repo = repo
    def handle(self, data):
        self.repo.book(data["account"], data["amount"])
class Consumer:
    def __init__(self, service: Service):
        self.service = service
        self.channel = pika.BlockingConnection().channel()
    def start(self):
        self.channel.basic_consume(queue="q", on_message_callback=self._on_message)
        self.channel.start_consuming()
    def _on_message(self, ch, method, props, body):
        self.service.handle(json.loads(body))
        ch.basic_ack(delivery_tag=method.delivery_tag)
