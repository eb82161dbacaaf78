# ruff: noqa
# expect file: P11
import json

import psycopg
import tornado.web


class GatewayWebhook(tornado.web.RequestHandler):
    def post(self):
        event = json.loads(self.request.body)
        with psycopg.connect("dbname=x") as conn:
            conn.execute("INSERT INTO entries (account, cents) VALUES (%s, %s)", (event["account"], event["cents"]))
        self.set_status(204)
