# ruff: noqa
# expect file: P11
from procrastinate import Blueprint, RetryStrategy
from .provider import ProviderClient

payouts = Blueprint()

@payouts.task(name="payout", retry=RetryStrategy(max_attempts=5), queue="money")
async def payout(*, seller_id: int, cents: int):
    async with ProviderClient.from_env() as client:
        await client.transfer(seller_id, cents)
