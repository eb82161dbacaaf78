# ruff: noqa
# expect file: clean
import json, boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, idempotent_function, IdempotencyConfig
ses = boto3.client('ses')
layer = DynamoDBPersistenceLayer(table_name="t")
config = IdempotencyConfig(event_key_jmespath="order_id")
@idempotent_function(data_keyword_argument="order", config=config, persistence_store=layer)
def process_order(order):
    ses.send_email(Source='a@b.c', Destination={'ToAddresses': [order['to']]}, Message={})
def lambda_handler(event, context):
    for record in event['Records']:
        process_order(order=json.loads(record['body']))
