# ruff: noqa
# expect file: clean
import boto3
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)

processor = BatchProcessor(event_type=EventType.SQS)
layer = DynamoDBPersistenceLayer(table_name="idempotency")
config = IdempotencyConfig(event_key_jmespath="body.order_id", expires_after_seconds=1_296_000)
sns = boto3.client("sns")


@idempotent_function(data_keyword_argument="record", config=config, persistence_store=layer)
def record_handler(record: SQSRecord):
    sns.publish(PhoneNumber=record.json_body["phone"], Message="shipped")


def lambda_handler(event, context):
    config.register_lambda_context(context)
    return process_partial_response(event=event, record_handler=record_handler, processor=processor, context=context)
