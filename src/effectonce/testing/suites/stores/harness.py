"""The harness of the cases for stores: claims, settlements, and records in each state.

A case is one ``async def`` over a `StoreHarness`. Where a method comes in two forms, as ``claim`` and ``try_claim``,
the first requires that the store grants or applies what it asks for, and the second returns the store's answer.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from effectonce.contracts import Backend, Port
from effectonce.record import (
    Answer,
    Batchable,
    Claim,
    Look,
    Note,
    Query,
    Record,
    Remember,
    Renewal,
    Resolution,
    SettledState,
    Settlement,
    State,
    SweepResult,
)
from effectonce.testing.suites.expectations import expect, expect_between, require

from .port_harness import SECOND_US, PortHarness, PortKind

RecordState = State | Literal["lapsed", "exhausted"]
Resolved = Literal["done", "failed", "free"]

LEASE_US = 60 * SECOND_US  # longer than any case takes
RETENTION_US = 3600 * SECOND_US  # longer than any case takes
FINISHED: tuple[Literal["done", "failed"], ...] = ("done", "failed")
RESOLUTIONS: tuple[Resolved, ...] = ("done", "failed", "free")  # the operator's; they are the states that expire
STATES: tuple[State, ...] = ("claimed", "done", "failed", "in_doubt", "free")
SETTLEMENTS: tuple[SettledState, ...] = ("done", "failed", "in_doubt", "free")
MAX_PAGES = 2_000  # no list has so many pages, and no sweep takes so many rounds, unless the backend loops


class Grant(Struct, frozen=True):
    """A claim that was granted, and the operations under its owner and token."""

    claim: Claim
    answer: Answer
    token: int

    @property
    def key(self) -> str:
        return self.claim.key

    def with_token(self, token: int) -> Grant:
        return replace(self, token=token)

    def with_another_owner(self, owner: bytes | None = None) -> Grant:
        return replace(self, claim=replace(self.claim, owner=owner or os.urandom(16)))

    def settlement(self, state: SettledState = "done", *, retention: int = RETENTION_US, **options: Any) -> Settlement:
        claim = self.claim
        return Settlement(claim.scope, claim.key, claim.owner, self.token, state, retention, **options)

    def renewal(self, lease: int = LEASE_US, retention: int = RETENTION_US) -> Renewal:
        return Renewal(self.claim.scope, self.claim.key, self.claim.owner, self.token, lease, retention)

    def note(self, note: bytes) -> Note:
        return Note(self.claim.scope, self.claim.key, self.claim.owner, self.token, note)


class StoreHarness(PortHarness):
    """One store under one case, which works in a scope of its own."""

    def __init__(self, backend: Backend, port_kind: PortKind, brief: float | None = None) -> None:
        super().__init__(backend, port_kind, brief)
        self.scope = f"suite-{uuid.uuid4().hex[:16]}"

    # -- one operation

    async def send(self, operation: Claim | Look, port: Port | None = None) -> Answer:
        """Send one claim or look, and return its answer."""
        reply = await self._run_one(operation, port)
        if not isinstance(reply, Answer):
            raise AssertionError(f"a claim or look was answered by {reply!r}, which is not an Answer")
        return reply

    async def _apply(self, operation: Batchable, port: Port | None = None) -> bool:
        reply = await self._run_one(operation, port)
        if not isinstance(reply, bool):
            raise AssertionError(f"{type(operation).__name__} was answered by {reply!r}, which is not a bool")
        return reply

    async def _run_one(self, operation: Batchable, port: Port | None) -> Answer | bool:
        (reply,) = await self.run(operation, port=port)
        if isinstance(reply, Exception):
            raise reply
        return reply

    # -- one claim, and what ends it

    def make_claim(
        self,
        key: str = "k",
        *,
        scope: str | None = None,
        owner: bytes | None = None,
        lease: int = LEASE_US,
        retention: int = RETENTION_US,
        **options: Any,
    ) -> Claim:
        return Claim(scope or self.scope, key, owner or os.urandom(16), lease, retention, **options)

    async def try_claim(self, key: str = "k", *, port: Port | None = None, **options: Any) -> Answer:
        return await self.send(self.make_claim(key, **options), port)

    async def claim(self, key: str = "k", *, port: Port | None = None, **options: Any) -> Grant:
        return await self.send_claim(self.make_claim(key, **options), port)

    async def send_claim(self, claim: Claim, port: Port | None = None) -> Grant:
        answer = await self.send(claim, port)
        expect(answer.kind, "claimed", f"the answer to a claim of {claim.key!r}")
        return Grant(claim, answer, answer.token)

    async def claim_batch(self, claims: Sequence[Claim], port: Port | None = None) -> list[Grant]:
        """Send ``claims`` in one batch, and return those that were granted."""
        replies = await self.run(*claims, port=port)
        return [
            Grant(claim, answer, answer.token)
            for claim, answer in zip(claims, replies, strict=True)
            if isinstance(answer, Answer) and answer.kind == "claimed"
        ]

    async def look(self, key: str = "k", *, scope: str | None = None, fingerprints: bytes = b"") -> Answer:
        return await self.send(Look(scope or self.scope, key, fingerprints))

    async def try_settle(
        self, grant: Grant, state: SettledState = "done", *, port: Port | None = None, **options: Any
    ) -> bool:
        return await self._apply(grant.settlement(state, **options), port)

    async def settle(
        self, grant: Grant, state: SettledState = "done", *, port: Port | None = None, **options: Any
    ) -> None:
        require(await self.try_settle(grant, state, port=port, **options), f"{state} of {grant.key!r} was refused")

    async def try_renew(self, grant: Grant, lease: int = LEASE_US, retention: int = RETENTION_US) -> bool:
        return await self._apply(grant.renewal(lease, retention))

    async def renew(self, grant: Grant, lease: int = LEASE_US, retention: int = RETENTION_US) -> None:
        require(await self.try_renew(grant, lease, retention), f"a renewal of {grant.key!r} was refused")

    async def try_note(self, grant: Grant, note: bytes) -> bool:
        return await self._apply(grant.note(note))

    async def note(self, grant: Grant, note: bytes) -> None:
        require(await self.try_note(grant, note), f"a note of {grant.key!r} was refused")

    async def try_remember(
        self, key: str = "k", *, result: bytes | None = None, fingerprints: bytes = b"", retention: int = RETENTION_US
    ) -> bool:
        return await self._apply(Remember(self.scope, key, retention, fingerprints, result))

    async def remember(self, key: str = "k", **options: Any) -> None:
        require(await self.try_remember(key, **options), f"a remember of {key!r} was refused")

    # -- what is stored

    async def get(self, key: str = "k", *, scope: str | None = None) -> Record | None:
        return await self.main_port.get(scope or self.scope, key)

    async def record(self, key: str = "k", *, scope: str | None = None) -> Record:
        """Return the record, which must be there."""
        record = await self.get(key, scope=scope)
        if record is None:
            raise AssertionError(f"there is no record of {key!r}")
        return record

    async def state(self, key: str = "k") -> State | Literal["absent"]:
        record = await self.get(key)
        return "absent" if record is None else record.state

    async def states(self, *keys: str) -> list[str]:
        return [await self.state(key) for key in keys]

    # -- operators and the sweeper

    async def try_forget(self, key: str = "k", retention: int = RETENTION_US) -> bool:
        return await self.main_port.forget(self.scope, key, retention)

    async def forget(self, key: str = "k", retention: int = RETENTION_US) -> None:
        require(await self.try_forget(key, retention), f"a forget of {key!r} was refused")

    async def try_resolve(
        self, state: Resolved, key: str = "k", *, retention: int = RETENTION_US, **options: Any
    ) -> bool:
        resolution = Resolution(state=state, retention_us=retention, **options)
        return await self.main_port.resolve(self.scope, key, resolution)

    async def resolve(self, state: Resolved, key: str = "k", **options: Any) -> None:
        require(await self.try_resolve(state, key, **options), f"a resolution of {key!r} to {state} was refused")

    async def list_records(self, *, limit: int = 100, sweep_between: bool = False, **query: Any) -> list[Record]:
        """Return the records of every page of a list. A sweep between the pages changes none of them."""
        records: list[Record] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self.main_port.list(Query(limit=limit, cursor=cursor, **query))
            require(len(page.records) <= limit, f"a page has {len(page.records)} records, and its limit is {limit}")
            records += page.records
            cursor = page.cursor
            if sweep_between:
                await self.main_port.sweep(100)
            if cursor is None:
                return records
        raise AssertionError(f"there was another page after {MAX_PAGES} pages")

    async def list_keys(self, **query: Any) -> list[str]:
        """Return the keys of this case's records on every page, in their order."""
        return [record.key for record in await self.list_records(**{"scope": self.scope, **query})]

    async def sweep(self, limit: int = 1_000) -> SweepResult:
        """Sweep until nothing is left to sweep, and return the totals."""
        deleted = lapsed = 0
        for _ in range(MAX_PAGES):
            swept = await self.main_port.sweep(limit)
            deleted, lapsed = deleted + swept.deleted, lapsed + swept.lapsed
            if not swept.more:
                return SweepResult(deleted, lapsed, False)
        raise AssertionError(f"there was more to sweep after {MAX_PAGES} sweeps")

    # -- records in a state

    async def make_record(self, state: RecordState, key: str = "k", **options: Any) -> Grant:
        """Make a record in ``state``, and return the grant of its last owner.

        ``lapsed``: claimed, and its lease has ended. ``exhausted``: failed, since a claim found no attempt left.
        ``options`` are those of the claim; ``result``, ``error`` and ``retention`` are those of its settlement.
        """
        outcome = {name: options.pop(name) for name in ("result", "error") if name in options}
        if state == "claimed":
            return await self.claim(key, **options)
        if state == "lapsed":
            grant = await self.claim(key, **{"lease": self.brief_us, **options})
            await self.wait_out(grant.claim.lease_us)
            return grant
        if state == "exhausted":
            grant = await self.make_record("free", key, **{**options, "retention": RETENTION_US})
            answer = await self.try_claim(key, **{**options, "max_attempts": 1})
            expect(answer.kind, "exhausted", "the answer to a claim past the limit")
            return grant
        retention = options.pop("retention", RETENTION_US)
        grant = await self.claim(key, **options)
        await self.settle(grant, state, retention=retention, **outcome)
        return grant

    async def make_record_in_each_state(self) -> list[str]:
        """Make a record in every state, and a claim that lapsed into doubt unnoticed. Returns their keys."""
        for state in STATES:
            await self.make_record(state, state, **outcome_of(state))
        await self.make_record("lapsed", "lapsed", doubt_on_lapse=True)
        return [*STATES, "lapsed"]

    async def make_backlog(self, count: int) -> None:
        """Make ``count`` records that have expired, and as many claims that have lapsed into doubt."""
        for n in range(count):
            await self.make_record("done", f"expired{n}", retention=self.brief_us)
            await self.claim(f"doubt{n}", lease=self.brief_us, doubt_on_lapse=True)
        await self.wait_out(self.brief_us)

    async def make_takeover(self, key: str = "k") -> tuple[Grant, Grant]:
        """Make a claim that lapsed and was taken over; return the grants of its first owner, a zombie, and the next."""
        zombie = await self.make_record("lapsed", key)
        return zombie, await self.claim(key)

    # -- expectations

    async def expect_fenced(self, grant: Grant) -> None:
        """Require that every settlement and renewal under ``grant`` is refused, and changes nothing."""
        before = await self.get(grant.key)
        for state in SETTLEMENTS:
            expect(await self.try_settle(grant, state, result=b"late", error=b"late"), False, f"a late {state}")
        expect(await self.try_settle(grant, "free", refund=True), False, "a late refund")
        expect(await self.try_renew(grant), False, "a late renewal")
        expect(await self.get(grant.key), before, "the record after that")

    async def expect_lease(self, record: Record, lease: int, since: int) -> None:
        """Require that the record's lease began between ``since`` and now, and that it expires one retention later."""
        lease_until, expires_at = record.lease_until or 0, record.expires_at or 0
        await self.expect_recent(lease_until - lease, since, "lease_until - lease")
        off = expires_at - lease_until - RETENTION_US
        expect_between(-self.slack_us, off, self.slack_us, "how far expires_at is from lease_until + retention, in us")

    async def expect_recent(self, moment: int | None, since: int, what: str) -> None:
        """Require that ``moment`` lies between ``since``, when the case read the clock, and now."""
        expect_between(since - self.slack_us, moment or 0, await self.now() + self.slack_us, what)


def expect_newer_token(later: Grant | Answer | Record, earlier: Grant | Record) -> None:
    """Require that a token grew, which fences the earlier claim (F69: tokens never start again)."""
    require(later.token > earlier.token, f"the token did not grow: {earlier.token}, then {later.token}")


def fingerprint(text: str, version: int = 1) -> bytes:
    """Make one 33-byte fingerprint entry: the algorithm's version and 32 bytes."""
    return bytes([version]) + text.encode().ljust(32, b".")[:32]


def outcome_of(state: str) -> dict[str, Any]:
    """Return what a settlement to ``state`` stores: a result, an error, or nothing."""
    if state == "done":
        return {"result": b"r"}
    return {"error": b"e"} if state == "failed" else {}


def round_keys(count: int) -> list[str]:
    return [f"round{n}" for n in range(count)]
