# ruff: noqa
# expect file: P11
import falcon
import psycopg


class PaymentEvents:
    def __init__(self, dsn):
        self.dsn = dsn

    def on_post(self, req, resp):
        event = req.media
        with psycopg.connect(self.dsn) as conn:
            conn.execute("UPDATE purse SET cents = cents + %s WHERE id = %s", (event["cents"], event["purse"]))
        resp.status = falcon.HTTP_204


api = falcon.App()
api.add_route("/webhooks/payments", PaymentEvents("dbname=x"))
