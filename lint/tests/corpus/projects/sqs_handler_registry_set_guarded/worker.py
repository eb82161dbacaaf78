# ruff: noqa
# expect file: clean
import json, boto3
sqs = boto3.client("sqs")
HANDLERS = {}
def on(kind):
    def add(fn):
        HANDLERS[kind] = fn
        return fn
    return add
@on("price.changed")
def price(event):
    boto3.resource("dynamodb").Table("prices").put_item(Item={"sku": event["sku"], "price": event["price"]})
@on("product.removed")
def removed(event):
    boto3.resource("dynamodb").Table("prices").delete_item(Key={"sku": event["sku"]})
def main(url):
    while True:
        for m in sqs.receive_message(QueueUrl=url).get("Messages", []):
            event = json.loads(m["Body"])
            HANDLERS[event["type"]](event)
            sqs.delete_message(QueueUrl=url, ReceiptHandle=m["ReceiptHandle"])
