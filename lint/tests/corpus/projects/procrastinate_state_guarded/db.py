# ruff: noqa
from psycopg_pool import AsyncConnectionPool
pool = AsyncConnectionPool()
