# ruff: noqa
# expect file: P11
import json

import psycopg
import stomp


class Bookings(stomp.ConnectionListener):
    def __init__(self, conn):
        self.conn = conn

    def on_message(self, frame):
        booking = json.loads(frame.body)
        with psycopg.connect("dbname=x") as db:
            db.execute("UPDATE rooms SET guests = guests + 1 WHERE id = %s", (booking["room"],))
        self.conn.ack(frame.headers["message-id"], frame.headers["subscription"])


conn = stomp.Connection([("mq", 61613)])
conn.set_listener("", Bookings(conn))
conn.connect(wait=True)
conn.subscribe("/queue/bookings", id=1, ack="client-individual")
