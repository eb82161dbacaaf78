# ruff: noqa
# expect file: P11
import boto3

ses = boto3.client("sesv2")


def handler(event, context):
    detail = event["detail"]
    ses.send_email(
        FromEmailAddress="a@example.org",
        Destination={"ToAddresses": [detail["email"]]},
        Content={"Simple": {"Subject": {"Data": "Hi"}, "Body": {"Text": {"Data": "x"}}}},
    )
