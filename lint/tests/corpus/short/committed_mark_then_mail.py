# ruff: noqa
# expect file: EO104
import psycopg
from celery import shared_task
from twilio.rest import Client

sms = Client()


class Seen:
    def __init__(self, dsn):
        self.dsn = dsn

    def first(self, key):
        with psycopg.connect(self.dsn) as conn:
            cur = conn.execute("INSERT INTO seen (key) VALUES (%s) ON CONFLICT DO NOTHING", (key,))
            return cur.rowcount == 1


seen = Seen("dbname=x")


@shared_task(bind=True, max_retries=5)
def remind(self, appointment, phone):
    if not seen.first(appointment):
        return
    try:
        sms.messages.create(to=phone, from_="+1", body="Tomorrow!")
    except ConnectionError as error:
        raise self.retry(exc=error)
