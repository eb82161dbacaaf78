# ruff: noqa
# expect file: EO202
import json, logging, boto3
dynamo = boto3.resource("dynamodb").Table("t")
log = logging.getLogger()
def handler(event, context):
    for record in event["Records"]:
        try:
            dynamo.put_item(Item=json.loads(record["body"]))
        except Exception as e:
            log.error("failed %s", e)
            continue
    return {"ok": True}
