# ruff: noqa
# expect file: clean
from celery import shared_task
from sqlalchemy import create_engine, text

engine = create_engine("postgresql://db/x")


@shared_task(acks_late=True)
def book(trip_id, km, car):
    with engine.begin() as conn:
        conn.execute(text("SELECT pg_advisory_xact_lock(hashtext(:k))"), {"k": trip_id})
        if conn.execute(text("SELECT 1 FROM journeys WHERE trip = :t"), {"t": trip_id}).first():
            return
        conn.execute(text("INSERT INTO journeys (trip, km) VALUES (:t, :k)"), {"t": trip_id, "k": km})
        conn.execute(text("UPDATE cars SET km = km + :k WHERE id = :c"), {"k": km, "c": car})
