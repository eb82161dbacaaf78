# ruff: noqa
# expect file: P11
import json
from datetime import datetime, timezone

import boto3

sqs = boto3.client("sqs")
table = boto3.resource("dynamodb").Table("trades")
URL = "https://sqs/1/q"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def record(decision: dict) -> None:
    table.put_item(Item={"PK": f"ACCOUNT#{decision['account']}", "SK": f"TRADE#{_now()}", "symbol": decision["symbol"]})


def main() -> None:
    while True:
        for message in sqs.receive_message(QueueUrl=URL).get("Messages", []):
            record(json.loads(message["Body"]))
            sqs.delete_message(QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])


if __name__ == "__main__":
    main()
