# ruff: noqa
# expect file: P11
from textwrap import dedent

import aiosqlite
from arq import cron

ADD = dedent(
    """
    UPDATE jars
       SET coins = coins + :n
     WHERE id = :jar
    """
)


async def drop_coin(ctx, jar, n):
    async with aiosqlite.connect("jars.db") as db:
        await db.execute(ADD, {"n": n, "jar": jar})
        await db.commit()


class WorkerSettings:
    functions = [drop_coin]
