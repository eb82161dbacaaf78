"""The oracle, which judges every schedule by what was promised.

It observes operations and the store's replies, effects, handlers that start and end, and settlements at the broker;
it never looks into the store. There are two kinds of rules:

- **promises** are what a user is told (DESIGN section 1): `lost`, `doubled`, `overlap`, `replay`, `wedged`,
  `starts`, `lease-lie`, `cancel`, `error`, `unexpected`, `order`, `phantom`, `unbalanced`,
  `redelivered`, `silent`;
- **contract** is how they are kept (sections 2 and 3): `fencing`, `refused`, `token`, `attempts`, `claim`, `abandoned`.

Three more are only checked where they are named, since no page promises them: `ghost`, `late-start`, `unrepeated`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from effectonce.record import Answer, Batchable, Claim, Look, Remember, Renewal, Settlement

from .scenario import MAX_CRASHES

RULES: Final = {
    "lost": "a message was acked, or given up, whose effect is not recorded",
    "doubled": "the effect was repeated where the mode says that it is not",
    "overlap": "two handlers of one key ran at the same time while the first one's lease held",
    "replay": "a duplicate got another result than the first that was recorded",
    "wedged": "a message, or a key, that never comes to an end",
    "starts": "a handler was started more often than max_attempts allows, or given up before it had its attempts",
    "lease-lie": "a handler was told that its lease holds when it does not",
    "cancel": "a cancelled call ended as if it had not been",
    "error": "the handler's own exception did not surface",
    "unexpected": "an error that no part of the design mentions",
    "fencing": "a settlement or renewal by a former holder of the claim was applied",
    "refused": "a settlement or renewal by the holder of the claim was refused",
    "token": "a token that does not grow, or that lies before the store's time",
    "attempts": "attempts that are not the number of starts",
    "claim": "a claim was answered with another state than the record's",
    "abandoned": "a call ended, nothing broke, and its claim was left to run out",
    "order": "messages of one ordering key left in another order than they were sent in",
    "phantom": "a message left, or a step was done, that was never committed",
    "unbalanced": "a saga that failed left a step standing, or undid what it had not done, or not in reverse order",
    "redelivered": "a message was delivered again while its worker had it, although nothing went wrong",
    "silent": "the sweeper failed, and no event was emitted",
    "ghost": "a claim that arrived late was granted to an owner whose call is over",
    "late-start": "a handler was started by a worker that could know that its lease is over",
    "unrepeated": "a completion that the store refused for its result was not repeated without it",
}

PROMISES: Final = frozenset(
    (
        "lost",
        "doubled",
        "overlap",
        "replay",
        "wedged",
        "starts",
        "lease-lie",
        "cancel",
        "error",
        "unexpected",
        "order",
        "phantom",
        "unbalanced",
        "redelivered",
        "silent",
    )
)
CONTRACT: Final = frozenset(("fencing", "refused", "token", "attempts", "claim", "abandoned"))


class Grant:
    """One attempt: a claim that was granted."""

    __slots__ = (
        "after_success",
        "attempt",
        "doubt",
        "effects",
        "epoch",
        "lease_until",
        "max_attempts",
        "owner",
        "recorded",
        "running",
        "started",
        "token",
    )

    def __init__(self, op: Claim, answer: Answer, now: int, epoch: int) -> None:
        self.owner = op.owner
        self.token = answer.token
        self.attempt = answer.attempts
        self.lease_until = now + op.lease_us
        self.doubt = op.doubt_on_lapse
        self.max_attempts = op.max_attempts
        self.epoch = epoch
        self.after_success = False  # it was granted although an attempt before had been recorded
        self.started = False  # whether its handler was
        self.running = False  # whether its handler was started, and its outcome is not at the store yet
        self.effects = 0
        self.recorded = False  # as done


class KeyHistory:
    """Everything that was observed about one key."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.holder: Grant | None = None  # the grant whose owner and token the record must have
        self.state = "absent"
        self.attempts = 0
        self.attempts_since = 0  # how many grants there were when attempts were last reset
        self.token = 0  # the highest of all grants
        self.expires = 0
        self.epoch = 0  # grows when a finished record expires: what follows is not a repetition
        self.result: bytes | None = None  # the first that was recorded in this epoch
        self.results: list[bytes] = []  # every one that was recorded
        self.effects = 0
        self.repeated = 0  # effects beyond the first of an epoch
        self._by_epoch: dict[int, int] = {}
        self.ever_recorded = False
        self.ever_failed = False
        self.was_decided = False  # by an operator, at least once

    def count_effect(self, epoch: int) -> int:
        """Count an effect, and return how many there are in its epoch."""
        self.effects += 1
        count = self._by_epoch[epoch] = self._by_epoch.get(epoch, 0) + 1
        self.repeated += count > 1
        return count


class GuardOracle:
    """Keeps the history of every key, and judges it. Calls ``fail`` with every violation."""

    def __init__(self, fail: Callable[[str, str], None], *, seen: bool, at_most_once: bool, retention: int) -> None:
        self._fail = fail
        self._seen = seen
        self._at_most_once = at_most_once
        self._retention = retention
        self.histories: dict[str, KeyHistory] = {}
        self.blamed: set[bytes] = set()  # owners that a fault has hit: they may leave claims behind
        self._observers: dict[type, Callable[[Any, Any, int], None]] = {
            Claim: self._claim,
            Look: self._look,
            Settlement: self._settlement,
            Renewal: self._renewal,
            Remember: self._remember,
        }

    def history(self, key: str) -> KeyHistory:
        history = self.histories.get(key)
        if history is None:
            history = self.histories[key] = KeyHistory()
        return history

    def first_result(self, key: str) -> bytes | None:
        """Return the result that was recorded first."""
        return self.history(key).result

    def would_change(self, op: Batchable, now: int) -> bool:
        """Whether executing ``op`` now would change the store."""
        if not isinstance(op, Claim):
            return not isinstance(op, Look)
        history = self.history(op.key)
        return history.state in ("absent", "free") or (history.holder is not None and now >= history.holder.lease_until)

    def grant(self, key: str, owner: bytes, token: int) -> Grant | None:
        for grant in reversed(self.history(key).grants):
            if grant.owner == owner and grant.token == token:
                return grant
        return None

    def observe(self, op: Batchable, reply: Any, now: int) -> None:
        """Judge ``reply``, which the store gives to ``op`` at its time ``now``."""
        history = self.history(op.key)
        self._age(history, now)
        self._observers[type(op)](op, reply, now)

    def _age(self, history: KeyHistory, now: int) -> None:
        state = history.state
        if state == "claimed":
            holder = history.holder
            assert holder is not None
            gone = not holder.doubt and holder.lease_until + self._retention <= now
        else:
            gone = state in ("done", "failed", "free") and history.expires <= now
        if gone:
            if state in ("done", "failed"):
                history.epoch += 1
            history.state, history.holder, history.attempts, history.result = "absent", None, 0, None
            history.attempts_since = len(history.grants)

    # -- the store's replies

    def _claim(self, op: Claim, reply: Answer, now: int) -> None:
        history, key, kind = self.history(op.key), op.key, reply.kind
        holder, state = history.holder, history.state
        live = state == "claimed" and holder is not None and now < holder.lease_until
        own = state == "claimed" and holder is not None and holder.owner == op.owner
        if kind == "claimed":
            self._judge_grant(op, reply, now, live, own)
        elif own:
            self._fail("claim", f"{key}: a claim that was resent by its owner was answered {kind!r}")
        elif kind == "in_progress":
            if not live:
                self._fail("wedged", f"{key}: answered in progress, without a live lease")
            elif holder is not None and abs(reply.retry_after * 1e6 - (holder.lease_until - now)) > 1:
                self._fail("claim", f"{key}: answered to wait {reply.retry_after} s for a lease with another end")
        elif kind == "in_doubt":
            if state != "in_doubt" and not (state == "claimed" and not live and holder is not None and holder.doubt):
                self._fail("claim", f"{key}: answered in doubt, but it is {state}")
            history.state = "in_doubt"
        elif kind == "exhausted":
            free = state in ("absent", "free") or (state == "claimed" and not live)
            grants = history.grants[history.attempts_since :]
            attempts = sum(grant.started or grant.owner in self.blamed for grant in grants)
            if state != "failed" and attempts < op.max_attempts:
                self._fail("starts", f"{key}: given up after {attempts} of {op.max_attempts} attempts")
            if free and 0 < op.max_attempts <= history.attempts:
                history.state, history.expires, history.ever_failed = "failed", now + op.retention_us, True
            elif state != "failed":
                self._fail("attempts", f"{key}: exhausted after {history.attempts} of {op.max_attempts} attempts")
        elif kind in ("done", "failed"):
            self._judge_finished(history, key, reply)
        else:
            self._fail("claim", f"{key}: a claim was answered {kind!r}")

    def _judge_grant(self, op: Claim, reply: Answer, now: int, live: bool, own: bool) -> None:
        history, key = self.history(op.key), op.key
        holder, state = history.holder, history.state
        if own and holder is not None:
            if (reply.token, reply.attempts) != (holder.token, holder.attempt):
                self._fail("token", f"{key}: the same claim, resent, was given another token or attempt")
            return
        if any(grant.owner == op.owner for grant in history.grants):
            self._fail("ghost", f"{key}: a late claim was granted to an owner that had settled it before")
        if live:
            self._fail("claim", f"{key}: claimed while the lease of another holds")
        elif state in ("done", "failed", "in_doubt"):
            self._fail("claim", f"{key}: claimed although it is {state}")
        elif state == "claimed" and holder is not None and holder.doubt:
            self._fail("claim", f"{key}: a lapsed claim that is in doubt was taken as if it were free")
        if reply.token <= history.token or reply.token < now:
            self._fail("token", f"{key}: token {reply.token} after {history.token}, at {now}")
        if reply.attempts != history.attempts + 1 or 0 < op.max_attempts < reply.attempts:
            self._fail("attempts", f"{key}: attempt {reply.attempts} of {op.max_attempts} after {history.attempts}")
        if holder is not None and not live:
            holder.lease_until = 0  # it has ended for good, even if the store's clock jumps back
        grant = Grant(op, reply, now, history.epoch)
        grant.after_success = any(
            earlier.recorded and earlier.effects and earlier.epoch == history.epoch for earlier in history.grants
        )
        history.grants.append(grant)
        history.holder, history.state, history.attempts = grant, "claimed", reply.attempts
        history.token = max(history.token, reply.token)

    def _judge_finished(self, history: KeyHistory, key: str, reply: Answer) -> None:
        if history.state != reply.kind:
            self._fail("claim", f"{key}: answered {reply.kind}, but it is {history.state}")
        elif reply.kind == "done" and reply.result != history.result:
            self._fail("replay", f"{key}: {reply.result!r} replayed, {history.result!r} was recorded first")

    def _look(self, op: Look, reply: Answer, now: int) -> None:
        history = self.history(op.key)
        if reply.kind in ("done", "failed"):
            self._judge_finished(history, op.key, reply)
        elif reply.kind == "absent" and history.state == "done":
            self._fail("doubled", f"{op.key}: not seen, although it was recorded, so that it runs again")

    def _settlement(self, op: Settlement, reply: bool, now: int) -> None:
        history, key = self.history(op.key), op.key
        grant = self.grant(key, op.owner, op.token)
        current = grant is not None and history.holder is grant
        if op.state == "free" and grant is not None and op.refund == grant.started:
            self._fail("attempts", f"{key}: a release that {'refunds' if op.refund else 'counts'} the attempt")
        open_ = history.state == "claimed" or (history.state == "in_doubt" and op.state == "done")
        if not reply:
            if current and (open_ or history.state == op.state):
                self._fail("refused", f"{key}: {op.state!r} by its own holder was refused")
            return
        if grant is not None:
            grant.running = False
            if op.state == "done":
                self._observe_recorded(history, grant, key)
        if not current:
            self._fail("fencing", f"{key}: {op.state!r} by a former holder was applied")
        elif open_:
            if op.state == "done":
                history.result = op.result
                history.results.append(op.result or b"")
            history.state, history.expires = op.state, now + op.retention_us
            history.attempts -= op.refund
            history.ever_failed |= op.state == "failed"
        elif history.state != op.state:
            self._fail("fencing", f"{key}: {op.state!r} was applied where it is {history.state}")

    def _observe_recorded(self, history: KeyHistory, grant: Grant, key: str) -> None:
        history.ever_recorded = True
        if not grant.recorded:
            grant.recorded = True
            recorded = [g for g in history.grants if g.recorded and g.effects and g.epoch == grant.epoch]
            if len(recorded) > 1:
                self._fail("doubled", f"{key}: {len(recorded)} attempts each had their effect and were recorded")

    def _renewal(self, op: Renewal, reply: bool, now: int) -> None:
        history = self.history(op.key)
        grant = self.grant(op.key, op.owner, op.token)
        current = grant is not None and history.holder is grant and history.state == "claimed"
        if reply and grant is not None:
            grant.lease_until = now + op.lease_us
        if reply and not current:
            self._fail("fencing", f"{op.key}: a renewal by a former holder was applied")
        elif current and not reply:
            self._fail("refused", f"{op.key}: a renewal by the holder was refused")

    def _remember(self, op: Remember, reply: bool, now: int) -> None:
        history = self.history(op.key)
        if not reply:
            self._fail("refused", f"{op.key}: a success was not remembered")
        elif history.state != "done":
            history.state, history.result, history.expires = "done", op.result, now + op.retention_us
            history.results.append(op.result or b"")
        history.ever_recorded = True

    # -- operators and the sweeper

    def observe_decision(self, key: str, state: str, result: bytes | None, now: int) -> None:
        """Note that an operator has resolved a record in doubt, or (as ``free``) made the store forget one."""
        history = self.history(key)
        if history.holder is not None:
            history.holder.lease_until = 0  # fenced out
        history.state, history.holder, history.expires, history.was_decided = state, None, now + self._retention, True
        history.token = max(history.token + 1, now)
        if state == "free":
            history.attempts, history.result = 0, None
            history.epoch, history.attempts_since = history.epoch + 1, len(history.grants)
        elif state == "done":
            history.result, history.ever_recorded = result, True
            history.results.append(result or b"")
        else:
            history.ever_failed = True

    def observe_sweep(self, now: int) -> None:
        for history in self.histories.values():
            self._age(history, now)
            holder = history.holder
            if history.state == "claimed" and holder is not None and holder.doubt and holder.lease_until <= now:
                history.state = "in_doubt"

    # -- handlers

    def observe_start(self, key: str, grant: Grant | None, now: int) -> None:
        """Judge the start of a handler of ``key``."""
        if grant is None:
            return
        for other in self.history(key).grants:
            if other is grant:
                break  # the later ones took over because this lease had ended: they may run beside it
            if other.running and now < other.lease_until:
                self._fail("overlap", f"{key}: attempt {grant.attempt} runs beside attempt {other.attempt}")
        grant.started = grant.running = True
        history = self.history(key)
        starts = sum(started.started for started in history.grants[history.attempts_since :])
        if 0 < grant.max_attempts < starts:
            self._fail("starts", f"{key}: started for the {starts}th time, of {grant.max_attempts} allowed")

    def observe_effect(self, key: str, grant: Grant | None) -> None:
        """Judge the effect of ``key``, which happens now."""
        history = self.history(key)
        count = history.count_effect(history.epoch if grant is None else grant.epoch)
        if grant is not None:
            grant.effects += 1
            if self._at_most_once and count > 1:
                self._fail("doubled", f"{key}: the effect happened a second time")
            if grant.after_success:
                self._fail("doubled", f"{key}: the effect was repeated after an attempt had been recorded")
        elif not self._seen:
            self._fail("doubled", f"{key}: an effect without a claim")

    # -- settlements at the broker

    def observe_ack(self, key: str) -> None:
        history = self.history(key)
        if not (history.effects or history.was_decided) or not history.ever_recorded:
            problem = "never happened" if not history.effects else "is not recorded"
            self._fail("lost", f"{key}: acked, but its effect {problem}")

    def observe_dead_letter(self, key: str) -> None:
        history = self.history(key)
        if history.ever_failed:
            return
        if history.attempts <= MAX_CRASHES:
            self._fail("lost", f"{key}: dead-lettered, but it has not failed for good")
        elif (
            history.holder is not None
        ):  # F20, a poison message: parked; its claim lapses, and duplicates are recognised
            self.blamed.add(history.holder.owner)

    def observe_replay(self, key: str, value: object) -> None:
        """Judge ``value``, which a duplicate got. (Whether it is the first was judged with the store's reply.)"""
        results = self.history(key).results
        if not any(f'"{value}"'.encode() in result for result in results):
            self._fail("replay", f"{key}: a duplicate got {value!r}, recorded was {results}")

    # -- the state of a key

    def holds(self, key: str, grant: Grant, now: int) -> bool:
        """Whether ``grant`` holds the record, and its lease lasts. Workers learn later of an operator's decision."""
        history = self.history(key)
        return history.was_decided or (
            history.holder is grant and history.state == "claimed" and now < grant.lease_until
        )

    def find_abandoned(self, owners: Collection[bytes]) -> str | None:
        """Return the key of a claim that ``owners``, whose calls are over, have left standing though nothing broke."""
        for key, history in self.histories.items():
            holder = history.holder
            if history.state == "claimed" and holder is not None and holder.owner in owners:
                return key if holder.owner not in self.blamed else None
        return None

    def state_key(self, tag: Callable[[bytes], object]) -> tuple[object, ...]:
        """Return what can still decide a verdict; owners by their ``tag``, None for those that are gone."""
        return tuple((key, *self._history_key(history, tag)) for key, history in sorted(self.histories.items()))

    def _history_key(self, history: KeyHistory, tag: Callable[[bytes], object]) -> tuple[object, ...]:
        holder, in_epoch = history.holder, [grant for grant in history.grants if grant.epoch == history.epoch]
        starts = sum(started.started for started in history.grants[history.attempts_since :])
        return (
            history.state,
            history.attempts,
            starts,
            history.token,
            history.expires,
            min(history.effects, 2),
            history.ever_recorded,
            history.ever_failed,
            history.was_decided,
            sum(grant.effects for grant in in_epoch),
            any(grant.recorded and grant.effects for grant in in_epoch),
            holder and (tag(holder.owner), holder.token, holder.lease_until, holder.owner in self.blamed),
            tuple(
                (
                    tag(grant.owner),
                    grant.token,
                    grant.lease_until,
                    grant.started,
                    grant.running,
                    grant.effects,
                    grant.recorded,
                    grant.after_success,
                    grant.epoch == history.epoch,
                    grant.owner in self.blamed,
                )
                for grant in history.grants
                if tag(grant.owner) is not None
            ),
        )
