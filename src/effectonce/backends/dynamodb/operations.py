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
from .connection import ConditionFailed, Item, Target, TooLarge, Wire
from .records import (
    FAR,
    Decision,
    Row,
    Value,
    bucket,
    claim,
    decode,
    encode,
    expressions,
    live,
    remember,
    seconds,
    standing,
    wrap,
)

SCHEMA = 1
META = b"effectonce"  # the id of the item that is no record: schema version, time of the last sweep
TRIES = 20


#: How an existing record may be taken without knowing it: unexpired, and free or lapsed with rerun.
#: (A token that is not below now needs the old one: that is a second write.)
_TAKEABLE = (
    "#expires_at > :past AND #token < :now AND (#state = :free"
    " OR (#state = :claimed AND #doubt = :no AND #lease_until <= :past AND #owner <> :owner))"
)
#: ``was`` is the state it is taken from: a claim that is repeated answers whether that had lapsed.
_TAKE = (
    "SET #scope = :scope, #key = :key, #state = :claimed, #owner = :owner, #token = :now, #doubt = :doubt,"
    " #version = if_not_exists(#version, :zero) + :one, #attempts = if_not_exists(#attempts, :zero) + :one,"
    " #generation = if_not_exists(#generation, :zero), #created = if_not_exists(#created, :now), #changed = :now,"
    " #lease_until = :until, #bucket = :bucket, #rank = :rank, #expires_at = :expires_at, #expires = :expires,"
    " #was = if_not_exists(#state, :free)"
)
#: What a claim has besides: one that lapses into doubt is kept from DynamoDB's time to live, and ranked by the end
#: of its lease, for the sweep; any other by when it was taken, whatever its heartbeats do (see _renew).
_TAKE_DOUBTFUL = ", #keep = :expires REMOVE #result, #error, #since"
_TAKE_PLAIN = ", #since = :now REMOVE #result, #error, #keep"
#: Ours, and not expired. A claim with doubt_on_lapse never expires, whatever its expires_at says (see _renew).
_OURS = (
    "#owner = :owner AND #token = :token"
    " AND (#doubt = :yes OR attribute_not_exists(#expires_at) OR #expires_at > :past) AND "
)
WORDS: dict[str, Value] = {
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
    """`contracts.Port.run`, and what the rest of the port is made of."""

    def __init__(self, wire: Wire, clock: ServerClock, target: Target) -> None:
        self._wire = wire
        self._clock = clock
        self._target = target
        self._greeted = False
        self._sharpened_at: int | None = None

    # -- getting ready

    async def _greet(self) -> None:
        """Once per port: the schema's version and the service's time, in one request."""
        if self._greeted:
            return
        found = await self._read(META)
        self._versioned(found)
        if not self._clock.known:
            raise UnsafeStore(f"{self._target} sends no Date with its replies, so that its time cannot be known")
        self._greeted = True

    def _versioned(self, meta: Item | None) -> None:
        remedy = f"run: effectonce migrate '{self._target}'"
        if meta is None:
            raise SchemaMissing(f"the table of {self._target} is not prepared for effectonce; {remedy}")
        version = int(meta.get("schema", {}).get("N", 0))
        if version != SCHEMA:
            raise SchemaMismatch(
                f"the table of {self._target} has schema {version}, this release reads {SCHEMA}; "
                + (remedy if version < SCHEMA else "upgrade effectonce")
            )

    async def _read(self, identity: bytes, consistent: bool = True) -> Item | None:
        reply = await self._wire.call("get_item", Key={"id": wrap(identity)}, ConsistentRead=consistent)
        return reply.get("Item") or None

    async def _sharpen(self, lease: int) -> None:
        """Know the time well enough for ``lease``, if a second of probing can do that.

        Only leases that are short beside the one-second grain of a date need it: the turn of the second is
        watched for, with probes close enough together to place it within a quarter of the lease.
        """
        clock, needed = self._clock, lease // 4
        begun = clock.local()
        if self._sharpened_at is not None and 0 <= begun - self._sharpened_at < 10_000_000:
            return
        while clock.uncertainty() > needed and 0 <= clock.local() - begun < 1_100_000:
            await self._wire.pause(max(needed / 2, 5_000) / 1e6)
            await self._read(META, consistent=False)
        if clock.uncertainty() > needed:
            self._sharpened_at = clock.local()

    # -- batches

    async def run(self, batch: Sequence[Batchable]) -> Sequence[Reply]:
        await self._greet()
        least = 4 * self._clock.SLACK  # of what probing can help
        leases = [op.lease for op in batch if isinstance(op, Claim) and op.lease > least]
        if leases and self._clock.uncertainty() > min(leases) // 4:
            await self._sharpen(min(leases))
        replies = await self._wire.each(self._one, batch)
        for reply in replies:
            if isinstance(reply, ConnectionLost):
                raise reply  # the batch is repeated; whatever was applied is recognised
        return replies

    async def _one(self, op: Batchable) -> Reply:
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
                    row = decode(await self._read(digest(op.scope, op.key)))
                    past = self._clock.read().past
                    return standing(live(row, past), op.fingerprints, past) or Answer("absent")
                case Note():
                    raise ConfigurationError("DynamoDB keeps no notes, which intents and sagas need; use a SQL store")
        except EffectOnceError as error:
            return error

    async def _claim(self, op: Claim) -> Reply:
        clock = self._clock
        if clock.uncertainty() > op.lease // 4:
            # Not to be granted; but what is finished, or another's, can be told.
            row = decode(await self._read(digest(op.scope, op.key)))
            told, change = claim(op, row, clock.read())
            return told if change is None else self._too_short(op.lease)
        offset = clock.offset
        reply = await self._take(op)
        moved = abs(clock.offset - offset)
        if isinstance(reply, Answer) and reply.kind == "claimed" and moved > op.lease // 4:
            # Its lease was reckoned from a time that was not: give it back as if it had never been.
            await self._settle(Settlement(op.scope, op.key, op.owner, reply.token, "free", op.retention, refund=True))
            return StoreUnavailable(
                f"the time of {self._target} and this machine's moved apart by {readable(moved)}; "
                "that is corrected, deliver again",
                retry_after=0.1,
            )
        return reply

    def _too_short(self, lease: int) -> StoreUnavailable:
        known = self._clock.uncertainty()
        return StoreUnavailable(
            f"the time of {self._target} is only known to ±{readable(known)}, too little for a lease of "
            f"{readable(lease)}; use a lease of at least {readable(5 * known)}"
        )

    async def _take(self, op: Claim) -> Reply:
        identity, (now, past) = digest(op.scope, op.key), self._clock.read()
        until, doubt = now + op.lease, op.doubt_on_lapse
        values: dict[str, Value] = {
            **WORDS,
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
            "expires": FAR if doubt else seconds(until + op.retention),
        }
        take, takeable = _TAKE, _TAKEABLE
        if op.fingerprints:
            prints = {f"print{n}": entry for n, entry in enumerate(split_fingerprints(op.fingerprints))}
            values.update(prints)
            take += ", #fingerprint = :print0"
            listed = ", ".join(f":{name}" for name in prints)
            takeable += f" AND (attribute_not_exists(#fingerprint) OR #fingerprint IN ({listed}))"
        if op.max_attempts:
            takeable += " AND #attempts < :max"
        take += _TAKE_DOUBTFUL if doubt else _TAKE_PLAIN
        try:
            reply = await self._update(
                identity, take, f"attribute_not_exists(#id) OR ({takeable})", values, ReturnValues="ALL_OLD"
            )
        except ConditionFailed as lost:
            return await self._change(lambda row, time: claim(op, row, time), lost.item)
        old = decode(reply.get("Attributes"))
        if old is None:
            return Answer("claimed", now, 1, 0)
        record = old.record
        return Answer("claimed", now, record.attempts + 1, record.generation, lapsed=record.state == "claimed")

    async def _settle(self, op: Settlement) -> bool:
        identity, (now, past) = digest(op.scope, op.key), self._clock.read()
        values: dict[str, Value] = {
            **WORDS,
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
        outlives = op.state != "in_doubt"
        for wanted, attributes in (
            (outlives, ("#expires_at = :expires_at", "#expires = :expires")),
            (op.state != "done", ("#bucket = :bucket", "#rank = :now")),
            (op.result is not None, ("#result = :result",)),
            (op.error is not None, ("#error = :error",)),
        ):
            if wanted:
                put += attributes
            else:
                drop += [text.partition(" ")[0] for text in attributes]
        if op.result is not None:
            values["result"] = op.result
        if op.error is not None:
            values["error"] = op.error
        states = "(#state = :claimed OR #state = :in_doubt)" if op.state == "done" else "#state = :claimed"
        try:
            await self._update(identity, f"SET {', '.join(put)} REMOVE {', '.join(drop)}", _OURS + states, values)
        except TooLarge:
            if op.result is None:
                raise
            # What happened must not be lost to the size of its result: duplicates learn that it was not kept.
            return await self._settle(replace(op, result=None))
        except ConditionFailed as lost:
            record = live(decode(lost.item), past)
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
                **WORDS,
                "past": past,
                "owner": op.owner,
                "token": op.token,
                "until": until,
                "expires_at": until + op.retention,
                "expires": seconds(until + op.retention),
            }
            # A renewal does not know whether its claim lapses into doubt, and so must not expire. Where it does,
            # `keep` is there, and is what `expires` stays; where it does not, `since`, and so its rank.
            renew = (
                "SET #lease_until = :until, #rank = if_not_exists(#since, :until), #expires_at = :expires_at,"
                " #expires = if_not_exists(#keep, :expires), #version = #version + :one"
            )
            try:
                await self._update(digest(op.scope, op.key), renew, _OURS + "#state = :claimed", values)
            except ConditionFailed:
                return False
            if abs(self._clock.offset - offset) <= op.lease // 4:
                break  # else the time was wrong, and is right now
        return True

    async def _remember(self, op: Remember) -> Reply:
        try:
            return await self._change(lambda row, time: remember(op, row, time), None)
        except TooLarge:
            if op.result is None:
                raise
            return await self._remember(replace(op, result=None))

    async def _change(self, decide: Callable[[Row | None, Time], Decision], item: Item | None) -> Reply:
        """Decide on ``item`` and put the outcome in its place; where it has changed meanwhile, decide again.

        But not where it was this write that changed it: where a reply is lost, the SDK sends the request again.
        """
        write = os.urandom(8)
        for _ in range(TRIES):
            row = decode(item)
            reply, new = decide(row, self._clock.read())
            if new is None:
                return reply
            lapsed = isinstance(reply, Answer) and reply.lapsed
            # Versions begin again where an item was deleted; tokens do not.
            same = "attribute_not_exists(#id)" if row is None else "#version = :version AND #token = :token"
            values: dict[str, Value] = {"version": row.version, "token": row.record.token} if row else {}
            try:
                await self._wire.call(
                    "put_item",
                    Item=encode(new, row.version + 1 if row else 1, lapsed=lapsed, write=write),
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    **expressions(values, ConditionExpression=same),
                )
            except ConditionFailed as lost:
                item = lost.item
                if item is None or item.get("write") != wrap(write):
                    continue
            return reply
        raise StoreUnavailable(
            f"a record of {self._target} changed {TRIES} times while one operation tried", retry_after=0.1
        )

    async def _update(
        self, identity: bytes, update: str, condition: str, values: dict[str, Value], **options: Any
    ) -> dict[str, Any]:
        return await self._wire.call(
            "update_item",
            Key={"id": wrap(identity)},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **expressions(values, UpdateExpression=update, ConditionExpression=condition),
            **options,
        )
