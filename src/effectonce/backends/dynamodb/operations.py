"""Claims, settlements, renewals and looks on DynamoDB: the conditional writes, and the checks of the estimated time.

Each operation is one conditional write, which decides on the server. Where its condition fails, the reply has the
stored item: a settlement sees by it whether it was applied before, and a claim is decided again by `decisions`, whose
result is written on the condition that the item is still the same (`_change`). So an operation that is sent twice, or
that a crash cuts off, has either happened or not. Times come from `ServerClock`: write relative to ``now``, and take
for ended only what ends by ``past``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from effectonce.contracts import ConnectionLost
from effectonce.errors import ConfigurationError, EffectOnceError, StoreUnavailable, UnsafeStore
from effectonce.record import Answer, Batchable, Claim, Look, Note, Remember, Renewal, Reply, Settlement
from effectonce.values.durations import span_text
from effectonce.values.fingerprint import split_fingerprints
from effectonce.values.identity import digest

from .client import ConditionFailed, DynamoDBClient, Item, ItemTooLarge
from .clock import Time
from .decisions import Decision, answer_look, decide_claim, decide_remember, drop_expired
from .items import NEVER_EXPIRES_S, AttributeValue, StoredItem, bucket, decode, encode, expressions, whole_seconds, wrap
from .schema import META_ID, require_version

MAX_WRITE_ROUNDS: Final = 20  # how often a record may change under one operation
PROBE_AGAIN_AFTER_US: Final = 10_000_000  # the pause after probes that did not make the clock precise enough
PROBE_FOR_US: Final = 1_100_000  # a second, within which the service's date changes once, and a little more
MIN_PROBE_PAUSE_US: Final = 5_000


#: The condition on which an existing record may be taken without reading it first: it is unexpired, and free or lapsed
#: with rerun. (A token that is not below now must be read, so that the new one is above it: that takes a second write.)
_TAKEABLE_CONDITION = (
    "#expires_at > :past AND #token < :now AND (#state = :free"
    " OR (#state = :claimed AND #doubt_on_lapse = :no AND #lease_until <= :past AND #owner <> :owner))"
)
#: ``was`` is the state before. By it, a repeated claim answers whether it has taken a lapsed lease.
_TAKE_UPDATE = (
    "SET #scope = :scope, #key = :key, #state = :claimed, #owner = :owner, #token = :now, #doubt_on_lapse = :doubt,"
    " #version = if_not_exists(#version, :zero) + :one, #attempts = if_not_exists(#attempts, :zero) + :one,"
    " #generation = if_not_exists(#generation, :zero), #created_at = if_not_exists(#created_at, :now),"
    " #changed_at = :now, #lease_until = :until, #expires_at = :expires_at, #expires = :expires,"
    " #bucket = :bucket, #rank = :rank, #was = if_not_exists(#state, :free)"
)
#: A claim that lapses into doubt is exempt from DynamoDB's time to live, and its rank is the end of its lease, by which
#: the sweep finds it. The rank of any other claim is the time at which it was taken; renewals keep it (see `_renew`).
_TAKE_DOUBTFUL = ", #keep = :expires REMOVE #result, #since"
_TAKE_PLAIN = ", #since = :now REMOVE #result, #keep"
#: The condition that this claim holds the record, and that it has not expired. A claim with doubt_on_lapse never
#: expires, whatever its expires_at is (see `_renew`).
_HELD_BY_CLAIM = (
    "#owner = :owner AND #token = :token"
    " AND (#doubt_on_lapse = :yes OR attribute_not_exists(#expires_at) OR #expires_at > :past) AND "
)
#: The attributes that only a claim has, and those that a settlement sets or removes.
_CLAIM_ATTRIBUTES: Final = ("lease_until", "keep", "since", "was")
_SETTLEMENT_ATTRIBUTES: Final = ("expires_at", "expires", "bucket", "rank", "result", "error")


def _settlement_update(changes: dict[str, str], *, keep_error: bool) -> str:
    """The update expression that sets these attributes of a settled record, and removes the others."""
    assignments = ", ".join(f"#{name} = {value}" for name, value in changes.items())
    kept = {*changes, "error"} if keep_error else changes
    unset = [name for name in _SETTLEMENT_ATTRIBUTES if name not in kept]
    removed = ", ".join(f"#{name}" for name in (*_CLAIM_ATTRIBUTES, *unset))
    return f"SET {assignments} REMOVE {removed}"


class Operations:
    """Implements `contracts.Port.run`. `DynamoDBPort` adds the rest of the port, with the helpers from here."""

    def __init__(self, client: DynamoDBClient) -> None:
        self._dynamodb = client
        self._clock = client.clock
        self._target = client.target
        self._is_prepared = False
        self._probed_in_vain_at: int | None = None

    # -- getting ready

    async def _prepare(self) -> None:
        """Check the schema's version, and learn the service's time by that request. Done once per port."""
        if self._is_prepared:
            return
        require_version(await self._read(META_ID), self._dynamodb)
        if not self._clock.is_known:
            raise UnsafeStore(f"{self._target} sends no Date header, so its clock cannot be read; use DynamoDB itself")
        self._is_prepared = True

    async def _read(self, identity: bytes, consistent: bool = True) -> Item | None:
        reply = await self._dynamodb.call("get_item", Key={"id": wrap(identity)}, ConsistentRead=consistent)
        return reply.get("Item") or None

    async def _probe_clock(self, lease_us: int) -> None:
        """Make the clock precise enough for ``lease_us``, if a second of probes can do that.

        Only leases of a few seconds need it, since a date has whole seconds. Probes are repeated until the date
        changes. They are so close together that the moment of the change is known to a quarter of the lease.
        """
        clock, needed = self._clock, lease_us // 4
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
        shortest = 4 * self._clock.SERVICE_SKEW_US  # probes cannot make the clock precise enough for less
        leases = [op.lease_us for op in batch if isinstance(op, Claim) and op.lease_us > shortest]
        if leases and self._clock.uncertainty() > min(leases) // 4:
            await self._probe_clock(min(leases))
        replies = await self._dynamodb.gather(self._run_one, batch)
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
                    return answer_look(op, stored, self._clock.read())
                case Note():
                    raise ConfigurationError("DynamoDB stores no notes, which intents and sagas need; use a SQL store")
        except EffectOnceError as error:
            return error

    async def _claim(self, op: Claim) -> Reply:
        clock = self._clock
        if clock.uncertainty() > op.lease_us // 4:
            # The claim cannot be granted. But if the record is finished, or another holds it, it can be answered.
            stored = decode(await self._read(digest(op.scope, op.key)))
            answer, change = decide_claim(op, stored, clock.read())
            return answer if change is None else self._lease_too_short(op.lease_us)
        offset = clock.offset
        reply = await self._take(op)
        moved = abs(clock.offset - offset)
        if isinstance(reply, Answer) and reply.kind == "claimed" and moved > op.lease_us // 4:
            # Its lease was computed from a wrong time: release it, and refund the attempt.
            await self._settle(
                Settlement(op.scope, op.key, op.owner, reply.token, "free", op.retention_us, refund=True)
            )
            return StoreUnavailable(
                f"the clocks of {self._target} and of this machine drifted apart by {span_text(moved)}; "
                "the estimate is corrected, deliver the message again",
                retry_after=0.1,
            )
        return reply

    def _lease_too_short(self, lease_us: int) -> StoreUnavailable:
        uncertainty = self._clock.uncertainty()
        return StoreUnavailable(
            f"the clock of {self._target} is known to ±{span_text(uncertainty)} only, too coarse for a lease of "
            f"{span_text(lease_us)}; use a lease of at least {span_text(5 * uncertainty)}"
        )

    async def _take(self, op: Claim) -> Reply:
        """Take the record in one write, if it is absent or takeable; otherwise decide by what is stored."""
        identity, (now, past) = digest(op.scope, op.key), self._clock.read()
        until, doubt = now + op.lease_us, op.doubt_on_lapse
        values: dict[str, AttributeValue] = {
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
            "expires_at": until + op.retention_us,
            "expires": NEVER_EXPIRES_S if doubt else whole_seconds(until + op.retention_us),
        }
        take, takeable = _TAKE_UPDATE, _TAKEABLE_CONDITION
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
            return await self._change(partial(decide_claim, op), lost.item)
        old = decode(reply.get("Attributes"))
        if old is None:
            return Answer("claimed", now, 1, 0)
        return Answer("claimed", now, old.attempts + 1, old.generation, error=old.error, lapsed=old.state == "claimed")

    async def _settle(self, op: Settlement) -> bool:
        """Settle the record if this claim holds it. True as well where that was done before."""
        identity, (now, past) = digest(op.scope, op.key), self._clock.read()
        values: dict[str, AttributeValue] = {
            "now": now,
            "past": past,
            "owner": op.owner,
            "token": op.token,
            "state": op.state,
            "bucket": bucket(op.state, False, identity),
            "expires_at": now + op.retention_us,
            "expires": whole_seconds(now + op.retention_us),
            "result": op.result or b"",
            "error": op.error or b"",
        }
        changes = {"state": ":state", "changed_at": ":now", "version": "#version + :one"}
        if op.refund:
            changes["attempts"] = "#attempts - :one"
        if op.state != "in_doubt":
            changes |= {"expires_at": ":expires_at", "expires": ":expires"}
        if op.state != "done":
            changes |= {"bucket": ":bucket", "rank": ":now"}
        if op.result is not None:
            changes["result"] = ":result"
        if op.error is not None and not op.refund:
            changes["error"] = ":error"
        states = "(#state = :claimed OR #state = :in_doubt)" if op.state == "done" else "#state = :claimed"
        try:
            update = _settlement_update(changes, keep_error=op.refund)
            await self._update(identity, update, _HELD_BY_CLAIM + states, values)
        except ItemTooLarge:
            if op.result is None:
                raise
            # A success must not be lost to the size of its result: duplicates get ResultNotStored.
            return await self._settle(replace(op, result=None))
        except ConditionFailed as lost:
            record = drop_expired(decode(lost.item), past)  # applied before, where its reply was lost
            return record is not None and (record.state, record.owner, record.token) == (op.state, op.owner, op.token)
        return True

    async def _renew(self, op: Renewal) -> bool:
        for _ in range(2):
            offset, (now, past) = self._clock.offset, self._clock.read()
            until = now + op.lease_us
            values: dict[str, AttributeValue] = {
                "past": past,
                "owner": op.owner,
                "token": op.token,
                "until": until,
                "expires_at": until + op.retention_us,
                "expires": whole_seconds(until + op.retention_us),
            }
            # A renewal does not know whether its claim lapses into doubt, and so must not expire. If it does, the item
            # has the attribute `keep`, and `expires` stays at that. If not, it has `since`, which stays its rank.
            renew = (
                "SET #lease_until = :until, #rank = if_not_exists(#since, :until), #expires_at = :expires_at,"
                " #expires = if_not_exists(#keep, :expires), #version = #version + :one"
            )
            try:
                await self._update(digest(op.scope, op.key), renew, _HELD_BY_CLAIM + "#state = :claimed", values)
            except ConditionFailed:
                return False
            if abs(self._clock.offset - offset) <= op.lease_us // 4:
                break  # else the clock was wrong, and is corrected now: renew once more
        return True

    async def _remember(self, op: Remember) -> Reply:
        try:
            return await self._change(partial(decide_remember, op), None)
        except ItemTooLarge:
            if op.result is None:
                raise
            return await self._remember(replace(op, result=None))

    async def _change(self, decide: Callable[[StoredItem | None, Time], Decision], item: Item | None) -> Reply:
        """Call ``decide`` for ``item``, and put the new record in its place. Where the item has changed meanwhile,
        decide again.

        Where a reply is lost, the SDK sends the write again, and the condition fails by our own change. So a change
        that carries the name of this very write counts as applied.
        """
        write = os.urandom(8)
        for _ in range(MAX_WRITE_ROUNDS):
            stored = decode(item)
            reply, new = decide(stored, self._clock.read())
            if new is None:
                return reply
            # Versions start again after an item was deleted; tokens do not.
            is_unchanged = "attribute_not_exists(#id)" if stored is None else "#version = :version AND #token = :token"
            values = {"version": stored.version, "token": stored.token} if stored else {"version": 0}
            new.version = values["version"] + 1
            try:
                await self._dynamodb.call(
                    "put_item",
                    Item=encode(new, write),
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    **expressions(values, ConditionExpression=is_unchanged),
                )
            except ConditionFailed as lost:
                item = lost.item
                if item is None or item.get("write") != wrap(write):
                    continue
            return reply
        raise StoreUnavailable(
            f"a record in {self._target} changed {MAX_WRITE_ROUNDS} times during one operation; retry", retry_after=0.1
        )

    async def _update(
        self, identity: bytes, update: str, condition: str, values: Mapping[str, AttributeValue], **options: Any
    ) -> dict[str, Any]:
        return await self._dynamodb.call(
            "update_item",
            Key={"id": wrap(identity)},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **expressions(values, UpdateExpression=update, ConditionExpression=condition),
            **options,
        )
