# ruff: noqa
# expect file: P11
import json, boto3
ses = boto3.client('ses')
def lambda_handler(event, context):
    for record in event['Records']:
        payload = json.loads(record['body'])
        ses.send_email(Source='a@b.c', Destination={'ToAddresses': [payload['to']]}, Message={'Subject': {'Data': 'x'}, 'Body': {'Text': {'Data': 'y'}}})
