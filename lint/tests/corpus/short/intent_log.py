# ruff: noqa
# expect file: clean
import psycopg2, stripe
from celery import shared_task
conn = psycopg2.connect("")
@shared_task(acks_late=True)
def charge(msg_id, amount):
    cur = conn.cursor()
    cur.execute("INSERT INTO payment_intents (msg_id, status) VALUES (%s, 'pending') ON CONFLICT (msg_id) DO NOTHING", (msg_id,))
    conn.commit()
    ch = stripe.Charge.create(amount=amount, currency="usd", idempotency_key=msg_id)
    cur.execute("UPDATE payment_intents SET status='done', charge_id=%s WHERE msg_id=%s", (ch.id, msg_id))
    conn.commit()
