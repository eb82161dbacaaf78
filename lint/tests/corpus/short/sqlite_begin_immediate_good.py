# ruff: noqa
# expect file: clean
import sqlite3

import dramatiq


@dramatiq.actor
def book(trip, km, car):
    conn = sqlite3.connect("cars.db", isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    if conn.execute("SELECT 1 FROM journeys WHERE trip = ?", (trip,)).fetchone() is None:
        conn.execute("INSERT INTO journeys (trip, km) VALUES (?, ?)", (trip, km))
        conn.execute("UPDATE cars SET km = km + ? WHERE id = ?", (km, car))
    conn.execute("COMMIT")
