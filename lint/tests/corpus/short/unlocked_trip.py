# ruff: noqa
# expect file: EO101
import psycopg
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector())


@app.task(retry=5)
def book(trip, km, car):
    with psycopg.connect("dbname=x") as conn:
        if conn.execute("SELECT 1 FROM journeys WHERE trip = %s", (trip,)).fetchone():
            return
        conn.execute("INSERT INTO journeys (trip, km) VALUES (%s, %s)", (trip, km))
        conn.execute("UPDATE cars SET km = km + %s WHERE id = %s", (km, car))
