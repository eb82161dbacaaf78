# ruff: noqa
# expect file: P11
from arq import create_pool
from arq.connections import RedisSettings
import aiosmtplib
from email.message import EmailMessage
async def send_email(ctx, to: str, subject: str):
    m = EmailMessage(); m["To"] = to
    await aiosmtplib.send(m, hostname="x")
class WorkerSettings:
    functions = [send_email]
    redis_settings = RedisSettings()
