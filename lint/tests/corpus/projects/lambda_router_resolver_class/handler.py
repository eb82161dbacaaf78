# ruff: noqa
# expect file: P11, EO303
import json
import os
from stripe_client import StripeGateway
class ChargeHandler:
    def __init__(self, gateway):
        self.gateway = gateway
    def __call__(self, event, context):
        for record in event["Records"]:
            self.gateway.charge(**json.loads(record["body"]))
handler = ChargeHandler(StripeGateway(os.environ["KEY"]))
