# ruff: noqa
# expect file: clean
import pika, json, psycopg2
class InboxRepo:
    def __init__(self, conn): self.conn = conn
    def try_insert(self, message_id):
        with self.conn.cursor() as cur:
            cur.execute("INSERT INTO inbox (message_id) VALUES (%s) ON CONFLICT DO NOTHING", (message_id,))
            return cur.rowcount == 1
class LedgerRepo:
    def __init__(self, conn): self.conn = conn
    def book(self, account, amount):
        with self.conn.cursor() as cur:
            cur.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (account, amount))
class Handler:
    def __init__(self):
        self.conn = psycopg2.connect("")
        self.inbox = InboxRepo(self.conn)
        self.ledger = LedgerRepo(self.conn)
    def __call__(self, ch, method, props, body):
        data = json.loads(body)
        try:
            if self.inbox.try_insert(data["id"]):
                self.ledger.book(data["account"], data["amount"])
            self.conn.commit()
        except Exception:
            self.conn.rollback()
            ch.basic_nack(method.delivery_tag)
            raise
        ch.basic_ack(method.delivery_tag)
    def on_message(self, ch, method, props, body):
        self(ch, method, props, body)
h = Handler()
ch = pika.BlockingConnection().channel()
ch.basic_consume("q", h.on_message)
