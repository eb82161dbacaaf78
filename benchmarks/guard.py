"""The guard beside the raw driver and the peers: memory, SQLite, Redis, PostgreSQL, a million keys, the import."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import effectonce as eo
from effectonce.record import Claim
from tests.harness import servers

from . import peers
from .measure import Case, Table, cpu, in_turn, rate

Handler = Callable[..., Any]

_serial = itertools.count()


def fresh(count: int) -> list[str]:
    """Unused keys, made before the clock starts."""
    serial = next(_serial)
    return [f"pay-{serial}-{number}" for number in range(count)]


def charge(payment_id: str, amount: int) -> int:
    return amount


async def acharge(payment_id: str, amount: int) -> int:
    return amount


def guard(store: eo.Store, handler: Handler, **options: Any) -> Handler:
    return eo.once(store, scope=f"bench-{next(_serial)}", key="payment_id", **options)(handler)


def one_by_one(handler: Handler, keys: Iterable[str]) -> None:
    for key in keys:
        handler(key, 4200)


async def at_once(handler: Callable[[str, int], Awaitable[Any]], keys: list[str], tasks: int) -> None:
    """``tasks`` workers that share the keys, as a consumer with that many handlers does."""
    rest = iter(keys)

    async def worker() -> None:
        for key in rest:
            await handler(key, 4200)

    await asyncio.gather(*(worker() for _ in range(tasks)))


def in_threads(handler: Handler, keys: list[str], threads: int) -> None:
    rest = iter(keys)
    lock = threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                key = next(rest, None)
            if key is None:
                return
            handler(key, 4200)

    running = [threading.Thread(target=worker) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def timed_run(work: Callable[..., Any], handler: Handler, count: int, *rest: Any) -> float:
    """Calls a second of ``handler`` on ``count`` new keys, which are made before the clock starts."""
    keys = fresh(count)
    return rate(count, lambda: work(handler, keys, *rest))


def blocks_of(
    make: Callable[[], Handler], size: int, clock: Callable[[], int] = time.process_time_ns
) -> Callable[[], float]:
    """Microseconds a call, of ``size`` calls of a new handler; for `in_turn`."""

    def block() -> float:
        handler = make()
        one_by_one(handler, fresh(size // 5))
        keys = fresh(size)
        started = clock()
        one_by_one(handler, keys)
        return (clock() - started) / size / 1e3

    return block


# -- memory -----------------------------------------------------------------------------------------------------


def memory(scale: float) -> Iterator[Table]:
    from idemkit import InMemoryBackend

    size, blocks = max(200, int(4000 * scale)), 6

    def new() -> eo.Store:
        return eo.connect("memory://", sweep_every=None)

    def replayed() -> Handler:
        handler = guard(new(), charge)
        handler("same", 4200)
        return lambda key, amount: handler("same", amount)

    ours = {
        "effectonce": lambda: guard(new(), charge),
        "effectonce, fingerprint": lambda: guard(new(), charge, fingerprint=("payment_id", "amount")),
        "effectonce, mode S": lambda: guard(new(), charge, mode="seen"),
        "effectonce, a duplicate": replayed,
    }
    others = {
        "hand-written dict and lock": lambda: peers.handwritten()(charge),
        "babelqueue wrap (seen-set)": lambda: peers.babelqueue_wrapped()(charge),
        "powertools": lambda: peers.powertools_in_memory()(charge),
    }
    cases = {name: blocks_of(make, size) for name, make in {**others, **ours}.items()}
    cases["idemkit"] = blocks_of(lambda: peers.idemkit_sync(InMemoryBackend())(charge), size // 40)
    yield _in_blocks("memory, first call", cases, blocks)
    with asyncio.Runner() as loop:

        def through(make: Callable[[], Handler], size: int = size) -> Callable[[], float]:
            async def all_of(handler: Handler, keys: list[str]) -> None:
                for key in keys:
                    await handler(key, 4200)

            def block() -> float:
                handler, keys = make(), fresh(size)
                loop.run(all_of(handler, fresh(size // 5)))
                return cpu(size, lambda: loop.run(all_of(handler, keys)))

            return block

        def hand_async() -> Handler:
            handler = peers.handwritten()(charge)

            async def call(payment_id: str, amount: int) -> Any:
                return handler(payment_id, amount)

            return call

        cases = {
            "hand-written dict and lock": through(hand_async),
            "idemkit": through(lambda: peers.idemkit_async(InMemoryBackend())(acharge), size // 40),
            "effectonce": through(lambda: guard(new(), acharge)),
        }
        yield _in_blocks("memory, first call, async", cases, blocks)


def _in_blocks(name: str, cases: dict[str, Callable[[], float]], blocks: int) -> Table:
    measures = in_turn(cases, blocks)
    lines = [Case(each, measures[each], ours=each.startswith("effectonce")) for each in cases]
    return Table(name, "µs of CPU", "less", lines, f"the best of {blocks} blocks a round, taken in turn", rounds=9)


# -- SQLite -----------------------------------------------------------------------------------------------------


def sqlite(scale: float) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        # At FULL in many short rounds, since a disk's moods last for seconds.
        for synchronous, target, size, rounds in (("FULL", 0.9, 250, 35), ("NORMAL", 0.75, 5000, 9)):
            count = max(100, int(size * scale))
            by_hand = two_statements(f"{folder}/hand-{synchronous}.db", synchronous)
            store = eo.connect(f"sqlite:///{folder}/ours-{synchronous}.db?synchronous={synchronous}", sweep_every=None)
            guarded = guard(store, charge)
            pair = claim_and_complete(store)

            def timed(handler: Handler, count: int = count) -> Callable[[int], float]:
                return lambda number: timed_run(one_by_one, handler, count)

            yield Table(
                f"SQLite, synchronous={synchronous}, one caller",
                "pairs of claim and completion a second",
                "more",
                [
                    Case("the same two statements by hand", timed(by_hand)),
                    Case(
                        "effectonce, claim + complete",
                        timed(pair),
                        {"the same two statements by hand": target},
                        ours=True,
                    ),
                    Case("effectonce, whole guard", timed(guarded), ours=True),
                ],
                rounds=rounds,
            )
            store.close()


def two_statements(path: str, synchronous: str) -> Handler:
    """The store's own claim and settlement, run through the `sqlite3` module on a file of its own."""
    from effectonce.core.run_sync import run_sync

    url = f"sqlite:///{path}?synchronous={synchronous}"
    with eo.connect(url, sweep_every=None) as store:
        store.migrate()
        port: Any = store.runtime.backend.sync_port()
        claim, settle = port._sql["claim"], port._sql["settle"]
        run_sync(port.close())
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(
        f"PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint=4000"
    )

    def by_hand(payment_id: str, amount: int) -> None:
        now = time.time_ns() // 1000
        owner = now.to_bytes(16, "little")
        record = {"scope": "pair", "key": payment_id, "owner": owner, "now": now, "expires_at": now + 10**12}
        claimed = {
            "due": now // 1000 << 20 | next(_serial) & 0xFFFFF,
            "doubt_on_lapse": False,
            "lease_until": now + 30_000_000,
            "fingerprint": None,
            "note": None,
            "max_attempts": 1 << 40,
            "fingerprints": b"",
        }
        connection.execute(claim, {**record, **claimed})
        done = {"state": "done", "result": b"14200", "error": None, "refund": 0, "note": None, "token": now}
        connection.execute(settle, {**record, **done, "also_from": "in_doubt"})

    # Statements that gain a parameter, or another order of them, must not go on being measured with the wrong values.
    with eo.connect(url, sweep_every=None) as store:
        claim_and_complete(store)("theirs", 4200)
        by_hand("by hand", 4200)
        theirs, ours = (_timeless(store.get("pair", key)) for key in ("by hand", "theirs"))
        if theirs != ours:
            raise RuntimeError(f"the statements by hand write another record than the store: {theirs}, not {ours}")
    return by_hand


def _timeless(record: eo.Record | None) -> dict[str, Any]:
    """What two records of the same operation have in common; of the times and the owner, whether they are there."""
    fields = msgspec.structs.asdict(record) if record is not None else {}
    for name in ("key", "token", "created_at", "changed_at", "lease_until", "expires_at", "owner"):
        fields[name] = bool(fields.get(name))
    return fields


def claim_and_complete(store: eo.Store) -> Handler:
    """The store's own part of a guarded call, through the group, without the guard around it."""
    from effectonce.core.run_sync import run_sync
    from effectonce.record import Settlement

    client = store.runtime.sync_client()
    new_owner = store.runtime.new_owner

    def pair(payment_id: str, amount: int) -> None:
        owner = new_owner()
        answer = run_sync(client.claim(Claim("pair", payment_id, owner, 30_000_000, 10**12)))
        run_sync(client.settle(Settlement("pair", payment_id, owner, answer.token, "done", 10**12, b"14200")))

    return pair


# -- Redis ------------------------------------------------------------------------------------------------------


def redis(scale: float) -> Iterator[Table]:
    import redis as client_library
    from idemkit import RedisBackend

    count = max(200, int(2000 * scale))
    with servers.redis() as server:
        client = client_library.Redis.from_url(server.url)
        store = eo.connect(server.url, sweep_every=None)
        guarded = guard(store, charge)
        guarded("same", 4200)

        def pings(payment_id: str, amount: int) -> None:
            client.ping()
            client.ping()

        def timed(handler: Handler) -> Callable[[int], float]:
            return lambda number: timed_run(one_by_one, handler, count)

        yield Table(
            "Redis, one caller, sync",
            "calls a second",
            "more",
            [
                Case("two PINGs through redis-py", timed(pings)),
                Case(
                    "effectonce, claim + complete",
                    timed(claim_and_complete(store)),
                    {"two PINGs through redis-py": 0.8},
                    ours=True,
                ),
                Case("effectonce, whole guard", timed(guarded), {"two PINGs through redis-py": 0.8}, ours=True),
                Case("one PING through redis-py", timed(lambda key, amount: client.ping())),
                Case(
                    "effectonce, a duplicate",
                    timed(lambda key, amount: guarded("same", amount)),
                    {"one PING through redis-py": 0.8},
                    ours=True,
                ),
            ],
            rounds=7,
        )

        def commands(payment_id: str, amount: int) -> None:
            if client.set(f"hand:{payment_id}", "claimed", nx=True, px=30_000):
                client.set(f"hand:{payment_id}", amount, px=86_400_000)

        def threaded(handler: Handler, size: int) -> Callable[[int], float]:
            return lambda number: timed_run(in_threads, handler, size, 16)

        yield Table(
            "Redis, 16 threads",
            "calls a second",
            "more",
            [
                Case("redis-py, SET NX and SET", threaded(commands, count)),
                Case("effectonce", threaded(guarded, 2 * count), {"redis-py, SET NX and SET": 2.5}, ours=True),
            ],
        )
        store.close()
        client.close()

        # The async cases share one event loop, since connections belong to theirs.
        with asyncio.Runner() as loop:
            from redis import asyncio as async_library

            async_client = async_library.Redis.from_url(server.url)
            store = eo.connect(server.url, sweep_every=None)
            guarded = guard(store, acharge)
            theirs = peers.idemkit_async(RedisBackend(async_library.Redis.from_url(server.url)))(acharge)

            async def async_commands(payment_id: str, amount: int) -> None:
                if await async_client.set(f"hand:{payment_id}", "claimed", nx=True, px=30_000):
                    await async_client.set(f"hand:{payment_id}", amount, px=86_400_000)

            def concurrent(handler: Handler, size: int) -> Callable[[int], float]:
                return lambda number: timed_run(lambda *args: loop.run(at_once(*args)), handler, size, 100)

            yield Table(
                "Redis, 100 concurrent async handlers",
                "calls a second",
                "more",
                [
                    Case("redis.asyncio, SET NX and SET", concurrent(async_commands, count)),
                    Case(
                        "effectonce",
                        concurrent(guarded, 5 * count),
                        {"redis.asyncio, SET NX and SET": 6.0, "idemkit": 10.0},
                        ours=True,
                    ),
                    Case("idemkit", concurrent(theirs, max(100, count // 4))),
                ],
                rounds=7,
            )
            loop.run(store.aclose())
            loop.run(async_client.aclose())


# -- PostgreSQL -------------------------------------------------------------------------------------------------

PG_CLAIM = """
INSERT INTO hand AS h VALUES (%s, %s, 'claimed', %s, 1, 1, now() + interval '30 s', now() + interval '1 d', NULL)
ON CONFLICT (scope, key) DO UPDATE SET state = 'claimed', owner = excluded.owner, token = h.token + 1,
  attempts = h.attempts + 1, lease_until = excluded.lease_until
WHERE h.state = 'free' OR h.lease_until <= now() RETURNING token, attempts
"""
PG_COMPLETE = """
UPDATE hand SET state = 'done', result = %s, expires_at = now() + interval '1 d'
WHERE scope = %s AND key = %s AND owner = %s AND token = %s
"""
PG_TABLE = """
CREATE TABLE hand (scope text, key text, state text, owner bytea, token bigint, attempts int,
  lease_until timestamptz, expires_at timestamptz, result bytea, PRIMARY KEY (scope, key))
"""


def postgres(scale: float) -> Iterator[Table]:
    import psycopg
    from psycopg_pool import AsyncConnectionPool

    count = max(200, int(1500 * scale))
    with servers.postgres(durable=True) as server, asyncio.Runner() as loop:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(PG_TABLE)
        store = eo.connect(server.url, sweep_every=None)
        store.migrate()
        guarded = guard(store, acharge)

        async def open_pool(autocommit: bool) -> AsyncConnectionPool[Any]:
            pool = AsyncConnectionPool(
                server.url, min_size=10, max_size=10, open=False, kwargs={"autocommit": autocommit}
            )
            await pool.open(wait=True)
            return pool

        explicit, autocommit = loop.run(open_pool(False)), loop.run(open_pool(True))

        def by_hand(pool: AsyncConnectionPool[Any]) -> Handler:
            async def handler(payment_id: str, amount: int) -> None:
                owner = payment_id.encode()
                async with pool.connection() as connection:
                    cursor = await connection.execute(PG_CLAIM, ("bench", payment_id, owner))
                    token, _ = await cursor.fetchone()
                async with pool.connection() as connection:
                    await connection.execute(PG_COMPLETE, (b"4200", "bench", payment_id, owner, token))

            return handler

        def concurrent(handler: Handler, size: int) -> Callable[[int], float]:
            return lambda number: timed_run(lambda *args: loop.run(at_once(*args)), handler, size, 100)

        yield Table(
            "PostgreSQL, 100 concurrent async handlers",
            "calls a second",
            "more",
            [
                Case("psycopg, pool of 10, a transaction each", concurrent(by_hand(explicit), count // 2)),
                Case("psycopg, pool of 10, autocommit", concurrent(by_hand(autocommit), count)),
                Case(
                    "effectonce",
                    concurrent(guarded, 5 * count),
                    {"psycopg, pool of 10, a transaction each": 8.0, "psycopg, pool of 10, autocommit": 4.0},
                    ours=True,
                ),
            ],
            note="fsync on",
        )
        loop.run(store.aclose())
        loop.run(explicit.close())
        loop.run(autocommit.close())


# -- a million live keys ----------------------------------------------------------------------------------------


def million(scale: float) -> Iterator[Table]:
    """Claims in batches on an empty store and on one that knows a million operations, all done, of equal settings."""
    from effectonce.core.run_sync import run_sync
    from effectonce.record import Settlement

    live = max(20_000, int(1_000_000 * scale))
    count = max(1280, int(12_800 * scale))

    def fill(store: eo.Store, keys: list[str], settled: bool = True) -> None:
        port = store.runtime.backend.sync_port()
        for start in range(0, len(keys), 128):
            batch = sorted(keys[start : start + 128])
            answers: Any = run_sync(port.run([Claim("fill", key, b"o" * 16, 10**10, 10**12) for key in batch]))
            tokens = zip(batch, (answer.token for answer in answers), strict=True)
            if not settled:
                continue
            run_sync(port.run([Settlement("fill", key, b"o" * 16, token, "done", 10**12) for key, token in tokens]))
        run_sync(port.close())

    def claims(store: eo.Store, count: int) -> Callable[[int], float]:
        port = store.runtime.backend.sync_port()

        def measure(number: int) -> float:
            keys = fresh(count)
            batches = [sorted(keys[start : start + 128]) for start in range(0, count, 128)]
            ops = [[Claim("probe", key, b"o" * 16, 10**10, 10**12) for key in batch] for batch in batches]
            return rate(count, lambda: [run_sync(port.run(batch)) for batch in ops])

        return measure

    def table(
        name: str, empty: eo.Store, full: eo.Store, note: str = "", count: int = count, target: float | None = 0.8
    ) -> Table:
        return Table(
            f"{name}, claims with {live:,} live keys",
            "claims a second",
            "more",
            [
                Case("empty store", claims(empty, count)),
                Case(f"{live:,} live keys", claims(full, count), {"empty store": target} if target else {}, ours=True),
            ],
            note,
            rounds=7,
        )

    keys = [f"pay-{number:x}-{number * 2654435761 % 2**32:08x}" for number in range(live)]
    with tempfile.TemporaryDirectory() as folder:
        empty, full = (eo.connect(f"sqlite:///{folder}/{name}.db", sweep_every=None) for name in ("empty", "full"))
        fill(full, keys)
        yield table("SQLite", empty, full)
    # Redis doubles its table at every power of two, and moves some of it with each command until that is done. A
    # million keys are just below one. The rounds stay below it; what they would be beyond it is a table of its own.
    doubling = 1 << (live - 1).bit_length()
    below = min(count, (doubling - live) // 8 // 128 * 128)
    for settled, name in ((True, "Redis"), (False, "Redis, all of them claimed")):
        with servers.redis() as one, servers.redis() as two:
            empty, full = (eo.connect(server.url, sweep_every=None) for server in (one, two))
            fill(full, keys, settled)
            yield table(name, empty, full, count=below)
            if settled:
                fill(full, [f"more-{number}" for number in range(doubling - live)])
                note = "passes: once on the way to twice as many keys"
                yield table("Redis, while it doubles its table", empty, full, note, target=None)
    with servers.redis() as server:
        claimed, done = redis_bytes(server.url, keys[: max(40_000, live // 5)])
        yield Table(
            "Redis, memory of a key without result, readable key included",
            "bytes",
            "less",
            [
                Case("the bound", lambda number: 320.0),
                Case("effectonce, done", lambda number: done, {"the bound": 1.0}, ours=True),
                Case(
                    "effectonce, claimed, while its lease runs", lambda number: claimed, {"the bound": 1.0}, ours=True
                ),
            ],
            "a claim whose lapse means in doubt, as of HTTP requests, is in an index beside: up to 150 bytes more",
            rounds=1,
        )
    with servers.postgres(durable=True) as first, servers.postgres(durable=True) as second:
        empty, full = (eo.connect(server.url, sweep_every=None) for server in (first, second))
        for store in (empty, full):
            store.migrate()
        fill(full, keys)
        yield table("PostgreSQL", empty, full, "fsync on")


def redis_bytes(url: str, keys: list[str]) -> tuple[float, float]:
    """What a Redis uses for a claimed key, and for the same key when it is done without a result."""
    import redis as client_library

    from effectonce.core.run_sync import run_sync
    from effectonce.record import Settlement

    owner = b"o" * 16
    batches = [sorted(keys[start : start + 128]) for start in range(0, len(keys), 128)]
    with contextlib.closing(client_library.Redis.from_url(url)) as client:
        port: Any = eo.connect(url, sweep_every=None).runtime.backend.sync_port()
        run_sync(port.check())

        def used() -> int:
            return int(client.info("memory")["used_memory"])

        before = used()
        answers = [
            run_sync(port.run([Claim("fill", key, owner, 10**10, 10**12) for key in batch])) for batch in batches
        ]
        tokens = [[answer.token for answer in each] for each in answers]
        claimed = used() - before
        for batch, each in zip(batches, tokens, strict=True):
            pairs = zip(batch, each, strict=True)
            run_sync(port.run([Settlement("fill", key, owner, token, "done", 10**12) for key, token in pairs]))
        done = used() - before
        run_sync(port.close())
    return claimed / len(keys), done / len(keys)


# -- the import -------------------------------------------------------------------------------------------------


def imports(scale: float) -> Iterator[Table]:
    def timed(statement: str) -> Callable[[int], float]:
        program = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
        # Compiled files are kept, as they are wherever a package is installed.
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

        def once() -> float:
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=compiled)
            return float(done.stdout) * 1000

        def measure(number: int) -> float:
            return min(once() for _ in range(5))  # an import is short, and a busy machine only ever adds

        return measure

    yield Table(
        "import",
        "ms",
        "less",
        [
            Case("import asyncio, msgspec", timed("import asyncio, msgspec")),
            Case("import effectonce", timed("import effectonce"), {"import asyncio, msgspec": 1 / 1.5}, ours=True),
            Case(  # what the first line alone puts off until a name is used
                "from effectonce import once, connect",
                timed("from effectonce import once, connect"),
                {"import asyncio, msgspec": 1 / 1.5},
                ours=True,
            ),
        ],
        rounds=7,
    )


PARTS: dict[str, Callable[[float], Iterator[Table]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
    "postgres": postgres,
    "million": million,
    "import": imports,
}


def root() -> Path:
    return Path(__file__).resolve().parent.parent
