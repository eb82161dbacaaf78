"""What we use of psycopg. It is imported when a PostgreSQL store is first made."""

from __future__ import annotations

from typing import Final

from effectonce.errors import MissingDriver, show

try:
    import psycopg as psycopg
    from psycopg import pq as pq
    from psycopg.adapt import AdaptersMap as AdaptersMap
    from psycopg.adapt import Transformer as Transformer
    from psycopg.conninfo import conninfo_attempts as conninfo_attempts
    from psycopg.conninfo import conninfo_attempts_async as conninfo_attempts_async
    from psycopg.conninfo import conninfo_to_dict as conninfo_to_dict
    from psycopg.conninfo import make_conninfo as make_conninfo
    from psycopg.types import numeric as numeric
    from psycopg.types import string as string
    from psycopg.types.bool import BoolBinaryLoader as BoolBinaryLoader
except ImportError as _error:
    raise MissingDriver(
        f"PostgreSQL needs the driver psycopg 3: pip install 'effectonce[postgres]' ({show(_error)})"
    ) from _error

#: The types of values that we send and read, by their numbers in every server's catalogue (pg_type.oid).
BOOL_OID: Final = 16
BYTEA_OID: Final = 17
INT8_OID: Final = 20
INT4_OID: Final = 23
TEXT_OID: Final = 25
