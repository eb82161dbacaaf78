# ruff: noqa
# expect file: EO401
import json

import boto3
from sqlalchemy import create_engine, text

engine = create_engine("postgresql://db/x")
sns = boto3.client("sns")


class Orders:
    def place(self, order):
        with engine.begin() as conn:
            done = conn.execute(
                text("INSERT INTO orders (order_no, total) VALUES (:o, :t) ON CONFLICT (order_no) DO NOTHING"),
                {"o": order["no"], "t": order["total"]},
            )
        if done.rowcount:
            self.tell(order)

    def tell(self, order):
        sns.publish(TopicArn="arn:placed", Message=json.dumps(order))


orders = Orders()


def handler(event, context):
    for record in event["Records"]:
        orders.place(json.loads(record["body"]))
