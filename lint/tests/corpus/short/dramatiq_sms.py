# ruff: noqa
# expect file: P11
import dramatiq
from dramatiq.brokers.redis import RedisBroker
import boto3
dramatiq.set_broker(RedisBroker())
sns = boto3.client("sns")
@dramatiq.actor(queue_name="sms", max_retries=3)
def send_code(phone: str, code: str) -> None:
    sns.publish(PhoneNumber=phone, Message=f"Your code is {code}")
