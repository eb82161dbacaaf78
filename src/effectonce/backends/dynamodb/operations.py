"""Claims, settlements, renewals and looks on DynamoDB: the conditional writes, and the time they are made at."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from effectonce.contracts import ConnectionLost
from effectonce.errors import (
    ConfigurationError,
    EffectOnceError,
    SchemaMismatch,
    SchemaMissing,
    StoreUnavailable,
    UnsafeStore,
)
from effectonce.record import (
    Answer,
    Batchable,
    Claim,
    Look,
    Note,
    Remember,
    Renewal,
    Reply,
    Settlement,
)
from effectonce.values.durations import readable
from effectonce.values.fingerprint import split_fingerprints
from effectonce.values.identity import digest

from .clock import ServerClock, Time
from .connection import ConditionFailed, DynamoDBClient, DynamoDBTarget, Item, ItemTooLarge
from .records import (
    NEVER_EXPIRES_S,
    Decision,
    StoredItem,
    Value,
    answer_of,
    bucket,
    decide_claim,
    decide_remember,
    decode,
    encode,
    expressions,
    seconds,
    unexpired,
    wrap,
)

SCHEMA_VERSION = 1
META_ID = b"effectonce"  # the id of the one item that is not a record: schema version, time of the last sweep
MAX_WRITE_ROUNDS = 20  # how often a record may change under one operation
PROBE_AGAIN_AFTER_US = 10_000_000  # after probes that did not make the clock precise enough
PROBE_FOR_US = 1_100_000  # one turn of the second, and a little more
MIN_PROBE_PAUSE_US = 5_000


#: When an existing record may be taken without having read it: unexpired, and free or lapsed with rerun.
#: (A token that is not below now has to be read to be exceeded: that is a second write.)
_TAKEABLE = (
    "#expires_at > :past AND #token < :now AND (#state = :free"
    " OR (#state = :claimed AND #doubt = :no AND #lease_until <= :past AND #owner <> :owner))"
)
#: ``was`` is the state before: a repeated claim answers from it whether the lease before had lapsed.
_TAKE = (
    "SET #scope = :scope, #key = :key, #state = :claimed, #owner = :owner, #token = :now, #doubt = :doubt,"
    " #version = if_not_exists(#version, :zero) + :one, #attempts = if_not_exists(#attempts, :zero) + :one,"
    " #generation = if_not_exists(#generation, :zero), #created = if_not_exists(#created, :now), #changed = :now,"
    " #lease_until = :until, #bucket = :bucket, #rank = :rank, #expires_at = :expires_at, #expires = :expires,"
    " #was = if_not_exists(#state, :free)"
)
#: A claim that lapses into doubt is exempt from DynamoDB's time to live, and ranked by the end of its lease, for the
#: sweep; any other is ranked by when it was taken, whatever its heartbeats do (see _renew).
_TAKE_DOUBTFUL = ", #keep = :expires REMOVE #result, #error, #since"
_TAKE_PLAIN = ", #since = :now REMOVE #result, #error, #keep"
#: Held by this claim, and not expired. A claim with doubt_on_lapse never expires, whatever its expires_at says (see
#: _renew).
_HELD_BY_CLAIM = (
    "#owner = :owner AND #token = :token"
    " AND (#doubt = :yes OR attribute_not_exists(#expires_at) OR #expires_at > :past) AND "
)
CONSTANT_VALUES: dict[str, Value] = {
    "zero": 0,
    "one": 1,
    "no": False,
    "yes": True,
    "claimed": "claimed",
    "free": "free",
    "in_doubt": "in_doubt",
    "done": "done",
}


class Operations:
    """`contracts.Port.run`, and the steps that the rest of the port is made of."""

    def __init__(self, client: DynamoDBClient, clock: ServerClock, target: DynamoDBTarget) -> None:
        self._dynamodb = client
        self._clock = clock
        self._target = target
        self._is_prepared = False
        self._probed_in_vain_at: int | None = None

    # -- getting ready

    async def _prepare(self) -> None:
        """Check the schema's version and learn the service's time: one request, once per port."""
        if self._is_prepared:
            return
        self._check_version(await self._read(META_ID))
        if not self._clock.known:
            raise UnsafeStore(
                f"{self._target} sends no Date with its replies, so that its time cannot be known; use DynamoDB itself"
            )
        self._is_prepared = True

    def _check_version(self, meta: Item | None) -> None:
        migrate = f"run: effectonce migrate '{self._target}'"
        if meta is None:
            raise SchemaMissing(f"the table of {self._target} is not prepared for effectonce; {migrate}")
        version = int(meta.get("schema", {}).get("N", 0))
        if version != SCHEMA_VERSION:
            raise SchemaMismatch(
                f"the table of {self._target} has schema {version}, this release reads {SCHEMA_VERSION}; "
                + (migrate if version < SCHEMA_VERSION else "upgrade effectonce")
            )

    async def _read(self, identity: bytes, consistent: bool = True) -> Item | None:
        reply = await self._dynamodb.call("get_item", Key={"id": wrap(identity)}, ConsistentRead=consistent)
        return reply.get("Item") or None

    async def _probe_clock(self, lease: int) -> None:
        """Make the clock precise enough for ``lease``, if a second of probes can do that.

        Only leases that are short beside the one-second grain of a date need it: probes wait for the turn of the
        second, close enough together to place it within a quarter of the lease.
        """
        clock, needed = self._clock, lease // 4
        started = clock.local()
        if self._probed_in_vain_at is not None and 0 <= started - self._probed_in_vain_at < PROBE_AGAIN_AFTER_US:
            return
        while clock.uncertainty() > needed and 0 <= clock.local() - started < PROBE_FOR_US:
            await self._dynamodb.pause(max(needed / 2, MIN_PROBE_PAUSE_US) / 1e6)
            await self._read(META_ID, consistent=False)
        if clock.uncertainty() > needed:
            self._probed_in_vain_at = clock.local()

    # -- batches

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        await self._prepare()
        shortest = 4 * self._clock.SLACK  # probes cannot make the clock precise enough for less
        leases = [op.lease for op in batch if isinstance(op, Claim) and op.lease > shortest]
        if leases and self._clock.uncertainty() > min(leases) // 4:
            await self._probe_clock(min(leases))
        replies = await self._dynamodb.each(self._run_one, batch)
        for reply in replies:
            if isinstance(reply, ConnectionLost):
                raise reply  # the batch is repeated; writes that were applied recognise that
        return replies

    async def _run_one(self, op: Batchable) -> Reply:
        try:
            match op:
                case Claim():
                    return await self._claim(op)
                case Settlement():
                    return await self._settle(op)
                case Renewal():
                    return await self._renew(op)
                case Remember():
                    return await self._remember(op)
                case Look():
                    stored = decode(await self._read(digest(op.scope, op.key)))
                    return answer_of(stored, op.fingerprints, self._clock.read().past) or Answer("absent")
                case Note():
                    raise ConfigurationError("DynamoDB stores no notes, which intents and sagas need; use a SQL store")
        except EffectOnceError as error:
            return error

    async def _claim(self, op: Claim) -> Reply:
        clock = self._clock
        if clock.uncertainty() > op.lease // 4:
            # It cannot be granted; but a record that is finished, or claimed by another, can be answered.
            stored = decode(await self._read(digest(op.scope, op.key)))
            answer, change = decide_claim(op, stored, clock.read())
            return answer if change is None else self._lease_too_short(op.lease)
        offset = clock.offset
        reply = await self._take(op)
        moved = abs(clock.offset - offset)
        if isinstance(reply, Answer) and reply.kind == "claimed" and moved > op.lease // 4:
            # Its lease was computed from a wrong time: release it, and refund the attempt.
            await self._settle(Settlement(op.scope, op.key, op.owner, reply.token, "free", op.retention, refund=True))
            return StoreUnavailable(
                f"the time of {self._target} and this machine's moved apart by {readable(moved)}; "
                "the estimate is corrected, deliver the message again",
                retry_after=0.1,
            )
        return reply

    def _lease_too_short(self, lease: int) -> StoreUnavailable:
        uncertainty = self._clock.uncertainty()
        return StoreUnavailable(
            f"the time of {self._target} is only known to ±{readable(uncertainty)}, too little for a lease of "
            f"{readable(lease)}; use a lease of at least {readable(5 * uncertainty)}"
        )

    async def _take(self, op: Claim) -> Reply:
        identity, (now, past) = digest(op.scope, op.key), self._clock.read()
        until, doubt = now + op.lease, op.doubt_on_lapse
        values: dict[str, Value] = {
            **CONSTANT_VALUES,
            "now": now,
            "past": past,
            "until": until,
            "rank": until if doubt else now,
            "scope": op.scope,
            "key": op.key,
            "owner": op.owner,
            "doubt": doubt,
            "max": op.max_attempts,
            "bucket": bucket("claimed", doubt, identity),
            "expires_at": until + op.retention,
            "expires": NEVER_EXPIRES_S if doubt else seconds(until + op.retention),
        }
        take, takeable = _TAKE, _TAKEABLE
        if op.fingerprints:
            prints = {f"print{n}": entry for n, entry in enumerate(split_fingerprints(op.fingerprints))}
            values.update(prints)
            take += ", #fingerprint = :print0"
            accepted = ", ".join(f":{name}" for name in prints)
            takeable += f" AND (attribute_not_exists(#fingerprint) OR #fingerprint IN ({accepted}))"
        if op.max_attempts:
            takeable += " AND #attempts < :max"
        take += _TAKE_DOUBTFUL if doubt else _TAKE_PLAIN
        try:
            reply = await self._update(
                identity, take, f"attribute_not_exists(#id) OR ({takeable})", values, ReturnValues="ALL_OLD"
            )
        except ConditionFailed as lost:
            return await self._change(lambda stored, time: decide_claim(op, stored, time), lost.item)
        old = decode(reply.get("Attributes"))
        if old is None:
            return Answer("claimed", now, 1, 0)
        record = old.record
        return Answer("claimed", now, record.attempts + 1, record.generation, lapsed=record.state == "claimed")

    async def _settle(self, op: Settlement) -> bool:
        identity, (now, past) = digest(op.scope, op.key), self._clock.read()
        values: dict[str, Value] = {
            **CONSTANT_VALUES,
            "now": now,
            "past": past,
            "owner": op.owner,
            "token": op.token,
            "state": op.state,
            "bucket": bucket(op.state, False, identity),
            "expires_at": now + op.retention,
            "expires": seconds(now + op.retention),
        }
        put = ["#state = :state", "#changed = :now", "#version = #version + :one"]
        drop = ["#lease_until", "#keep", "#since", "#was"]
        if op.refund:
            put.append("#attempts = #attempts - :one")
        for is_set, attributes in (
            (op.state != "in_doubt", ("#expires_at = :expires_at", "#expires = :expires")),
            (op.state != "done", ("#bucket = :bucket", "#rank = :now")),
            (op.result is not None, ("#result = :result",)),
            (op.error is not None, ("#error = :error",)),
        ):
            if is_set:
                put += attributes
            else:
                drop += [text.partition(" ")[0] for text in attributes]
        if op.result is not None:
            values["result"] = op.result
        if op.error is not None:
            values["error"] = op.error
        states = "(#state = :claimed OR #state = :in_doubt)" if op.state == "done" else "#state = :claimed"
        try:
            await self._update(
                identity, f"SET {', '.join(put)} REMOVE {', '.join(drop)}", _HELD_BY_CLAIM + states, values
            )
        except ItemTooLarge:
            if op.result is None:
                raise
            # A success must not be lost to the size of its result: duplicates get ResultNotStored.
            return await self._settle(replace(op, result=None))
        except ConditionFailed as lost:
            record = unexpired(decode(lost.item), past)
            return (
                record is not None
                and record.state == op.state
                and record.owner == op.owner
                and record.token == op.token
            )
        return True

    async def _renew(self, op: Renewal) -> bool:
        for _ in range(2):
            offset, (now, past) = self._clock.offset, self._clock.read()
            until = now + op.lease
            values: dict[str, Value] = {
                **CONSTANT_VALUES,
                "past": past,
                "owner": op.owner,
                "token": op.token,
                "until": until,
                "expires_at": until + op.retention,
                "expires": seconds(until + op.retention),
            }
            # A renewal does not know whether its claim lapses into doubt and so must not expire. Where it does, the
            # attribute `keep` is there and `expires` stays at it; where it does not, `since` is, and is its rank.
            renew = (
                "SET #lease_until = :until, #rank = if_not_exists(#since, :until), #expires_at = :expires_at,"
                " #expires = if_not_exists(#keep, :expires), #version = #version + :one"
            )
            try:
                await self._update(digest(op.scope, op.key), renew, _HELD_BY_CLAIM + "#state = :claimed", values)
            except ConditionFailed:
                return False
            if abs(self._clock.offset - offset) <= op.lease // 4:
                break  # else the clock was wrong, and is corrected now: renew once more
        return True

    async def _remember(self, op: Remember) -> Reply:
        try:
            return await self._change(lambda stored, time: decide_remember(op, stored, time), None)
        except ItemTooLarge:
            if op.result is None:
                raise
            return await self._remember(replace(op, result=None))

    async def _change(self, decide: Callable[[StoredItem | None, Time], Decision], item: Item | None) -> Reply:
        """Decide on ``item`` and put the outcome in its place; where it has changed meanwhile, decide again.

        A change by this very write counts as applied: where a reply is lost, the SDK sends the request again.
        """
        write = os.urandom(8)
        for _ in range(MAX_WRITE_ROUNDS):
            stored = decode(item)
            reply, new = decide(stored, self._clock.read())
            if new is None:
                return reply
            lapsed = isinstance(reply, Answer) and reply.lapsed
            # Versions start again after an item was deleted; tokens do not.
            is_unchanged = "attribute_not_exists(#id)" if stored is None else "#version = :version AND #token = :token"
            values: dict[str, Value] = {"version": stored.version, "token": stored.record.token} if stored else {}
            try:
                await self._dynamodb.call(
                    "put_item",
                    Item=encode(new, stored.version + 1 if stored else 1, lapsed=lapsed, write=write),
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    **expressions(values, ConditionExpression=is_unchanged),
                )
            except ConditionFailed as lost:
                item = lost.item
                if item is None or item.get("write") != wrap(write):
                    continue
            return reply
        raise StoreUnavailable(
            f"a record of {self._target} changed {MAX_WRITE_ROUNDS} times under one operation; retry", retry_after=0.1
        )

    async def _update(
        self, identity: bytes, update: str, condition: str, values: dict[str, Value], **options: Any
    ) -> dict[str, Any]:
        return await self._dynamodb.call(
            "update_item",
            Key={"id": wrap(identity)},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **expressions(values, UpdateExpression=update, ConditionExpression=condition),
            **options,
        )
