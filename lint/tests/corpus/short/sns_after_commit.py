# ruff: noqa
# expect file: P11, EO401
from celery import shared_task
import boto3, json
from app.db import Session
from app.models import Order
sns = boto3.client("sns")
@shared_task
def complete(order_id):
    session = Session()
    order = session.get(Order, order_id)
    order.status = "complete"
    session.commit()
    sns.publish(TopicArn="arn:aws:sns:x:orders", Message=json.dumps({"id": order_id}))
