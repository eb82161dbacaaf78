# ruff: noqa
"""arq jobs: named in WorkerSettings."""

import resend
from arq import Retry, cron, func
from arq.connections import RedisSettings
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from shop.tables import Report

make_session = async_sessionmaker(create_async_engine("sqlite+aiosqlite:///shop.db"))


async def startup(ctx):
    ctx["session"] = make_session()


async def send_welcome(ctx, user_id, email):  # expect: P11, EO303
    resend.Emails.send({"from": "shop@example.com", "to": email, "subject": "Welcome", "html": "<p>Hello</p>"})


async def send_welcome_keyed(ctx, user_id, email):  # expect: clean
    resend.Emails.send(
        {"from": "shop@example.com", "to": email, "subject": "Welcome", "html": "<p>Hello</p>"},
        {"idempotency_key": f"welcome/{user_id}"},
    )


async def store_report(ctx, day):  # expect: P11
    async with make_session() as session:
        session.add(Report(day=day, rows=await count_rows(day)))
        await session.commit()


async def refresh(ctx, user_id):  # expect: clean
    if ctx["job_try"] > 5:
        raise Retry(defer=60)
    async with make_session() as session:
        report = await session.get(Report, user_id)
        report.fresh = True
        await session.commit()


async def count_rows(day):
    return 3


class WorkerSettings:
    functions = [send_welcome, func(send_welcome_keyed, name="keyed"), store_report, refresh]
    cron_jobs = [cron(refresh, hour=3)]
    on_startup = startup
    redis_settings = RedisSettings()
