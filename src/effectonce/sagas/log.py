"""The log of one saga, and how it is committed.

The record's note is the log: the input as it was frozen, and of every step and every compensation how far it has come.
Each end of a step is one commit; the last one rides with the settlement.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Literal, NoReturn

import msgspec
from msgspec import Struct, field

from effectonce.core.codec import VERSION, encode_error
from effectonce.core.guarded_call.finish import completion_of, leave
from effectonce.core.guarded_call.run import Run
from effectonce.core.notes import hidden, note, noted
from effectonce.core.store_runtime import StoreClient
from effectonce.errors import CorruptRecord, InDoubt, LeaseLost, SagaChanged, SagaFailed, scrubbed, show
from effectonce.record import Settlement

State = Literal["pending", "running", "done", "failed", "timed_out"]


class Part(Struct, array_like=True, gc=False):
    """A step, or a compensation, as far as it has come. Times are on the store's clock, in microseconds.

    ``running``: it was begun, and nobody wrote down what came of it.
    """

    state: State = "pending"
    attempts: int = 0
    crashes: int = 0  # how often a process ended in it without a word, or it ended itself (`sys.exit`)
    rounds: int = 0  # how often an operator let it begin anew; part of its provider keys
    began: int = 0
    ended: int = 0
    error: str = ""
    unknown_since: int = 0  # since when it may have happened without anybody knowing
    guessed: bool = False  # that nobody knows was not its own word: an error of the network came out of it

    def begin_anew(self) -> None:
        self.state, self.attempts, self.crashes, self.unknown_since, self.guessed = "pending", 0, 0, 0, False
        self.rounds += 1


class Entry(Struct, array_like=True, gc=False):
    """One step of a saga."""

    name: str
    key: str  # what its keys are made of: the name it had first, since a new one would do it again
    undoable: bool  # whether it has a compensation: one that is gone by the time it is needed must not go unnoticed
    do: Part = field(default_factory=Part)
    undoing: Part | None = None  # see `undo`
    result: bytes | None = None  # of a step that is done; None: it could not be stored

    @property
    def undo(self) -> Part:
        """Its compensation, which is not written down before somebody looks at it: few sagas ever turn around."""
        if self.undoing is None:
            self.undoing = Part()
        return self.undoing


class Log(Struct, array_like=True, gc=False):
    """What is written down about one saga. Outside of the cycle collector, with its parts: it is a tree of values."""

    id: str
    version: str
    input: bytes  # JSON
    entries: list[Entry]
    phase: Literal["running", "compensating"] = "running"
    failed_at: str = ""  # the step that failed; "" where an operator asked to compensate
    failure: str = ""  # the class of what it raised
    why: str = ""
    doubtful: str = ""  # the step in doubt
    doubt: str = ""  # and why
    settled: int = 0  # the number of the attempt that last wrote this down and let go
    written_at: int = 0  # negative: by the clock of the process that claimed it first, since no other was known (F12)

    def interrupted(self) -> None:
        """Whoever had it before ended without a word: the step that came next may have happened."""
        if self.phase == "running":
            for entry in self.entries:
                if entry.do.state != "done":
                    entry.do.state = "running"
                    entry.do.crashes += 1
                    return

    @property
    def undoing(self) -> bool:
        """Whether it is a compensation that is in doubt."""
        return any(entry.name == self.doubtful and entry.do.state == "done" for entry in self.entries)

    def part_in_doubt(self) -> tuple[Entry, Part]:
        entry = next(entry for entry in self.entries if entry.name == self.doubtful)
        return entry, entry.undo if self.undoing else entry.do

    def fail(self, at: str, error: BaseException | None) -> None:
        """Turn around: what is done is compensated from now on."""
        self.phase, self.failed_at = "compensating", at
        self.failure = f"{type(error).__module__}:{type(error).__qualname__}" if error is not None else ""
        self.why = told(error) if error is not None else "an operator asked for it"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Log).decode
_to_json = msgspec.json.Encoder().encode


def frozen(log: Log) -> bytes:
    """The note that says so."""
    return _encode(log)


def read(stored: bytes | None) -> Log:
    try:
        return _decode(stored or b"")
    except ValueError as error:
        raise CorruptRecord(f"the log of a saga cannot be read: {error}; upgrade this process") from error


def told(error: BaseException) -> str:
    """An error as the log keeps it."""
    try:
        return show(scrubbed(f"{type(error).__name__}: {error}".rstrip(": ")), 1000)
    except Exception:  # its own text cannot be made
        return type(error).__name__


def results_of(log: Log) -> dict[str, bytes]:
    """What the steps gave, as stored bytes, by name."""
    return {entry.name: entry.result for entry in log.entries if entry.do.state == "done" and entry.result is not None}


def packed(results: Mapping[str, bytes]) -> bytes:
    """The results of all steps as the one that a record keeps."""
    return VERSION + _to_json({name: msgspec.Raw(stored[1:]) for name, stored in results.items()})


def unpacked(value: Mapping[str, msgspec.Raw]) -> dict[str, bytes]:
    return {name: VERSION + bytes(raw) for name, raw in value.items()}


class Migration(Struct, frozen=True):
    """How sagas that were begun under an older definition go on under this one."""

    renamed: Mapping[str, str]
    not_undone: frozenset[str] = frozenset()  # what could be undone then, and on purpose no longer can


def fit(log: Log, version: str, undoable: Mapping[str, bool], migrations: Mapping[str, Migration]) -> None:
    """Make ``log`` one of the definition as it is now: its steps, and which of them can be undone. `SagaChanged` where
    it was begun under another and nobody said how the two fit together."""
    begun, names = log.version, list(undoable)
    then = [entry.name for entry in log.entries]
    migration = migrations.get(begun)
    about = f"saga {show(log.id)!r} was begun under version {show(begun)!r} with the steps {', '.join(then)}"
    if log.version != version or then != names:
        about = f"{about}, and this process has version {show(version)!r} with {', '.join(names)}"
        if migration is None:
            raise SagaChanged(
                f"{about}: let the old release finish it, or say how they fit together: "
                f"saga.migrate({begun!r}, {{'old_step': 'new_step'}})"
            )
        _rename(log, version, undoable, migration.renamed, about)
    on_purpose = migration.not_undone if migration is not None else ()
    if lost := [
        entry.name for entry in log.entries if _left_standing(entry, undoable) and entry.name not in on_purpose
    ]:
        renamed = {} if migration is None else dict(migration.renamed)
        raise SagaChanged(
            f"{about}: {', '.join(lost)} may have happened, and what undoes it is gone. Give it its compensation back, "
            f"let the old release finish it, or say that it is on purpose: saga.migrate({begun!r}, "
            f"{renamed!r}, not_undone={sorted({*lost, *on_purpose})!r})"
        )
    for entry in log.entries:
        entry.undoable = undoable[entry.name]


def _left_standing(entry: Entry, undoable: Mapping[str, bool]) -> bool:
    """Whether it may have happened, could be undone when it was begun, was not, and no longer can be."""
    undone = entry.undoing is not None and entry.undoing.state == "done"
    return entry.undoable and not undoable[entry.name] and entry.do.state not in ("pending", "failed") and not undone


def _rename(log: Log, version: str, undoable: Mapping[str, bool], renamed: Mapping[str, str], about: str) -> None:
    names = list(undoable)
    entries = {renamed.get(entry.name, entry.name): entry for entry in log.entries}
    begun = [name for name, entry in entries.items() if entry.do.state != "pending"]
    if len(entries) < len(log.entries):
        raise SagaChanged(f"{about}: the migration makes two of its steps one")
    if lost := [name for name in begun if name not in undoable]:
        raise SagaChanged(f"{about}: {', '.join(lost)} was begun and has no step any more; map it to one")
    if log.phase == "running" and begun != names[: len(begun)]:
        raise SagaChanged(f"{about}: a step stands before {begun[-1]} that has not run; put new ones at the end")
    for name, entry in entries.items():
        entry.name = name
    log.failed_at = renamed.get(log.failed_at, log.failed_at)
    log.doubtful = renamed.get(log.doubtful, log.doubtful)
    log.version = version
    log.entries = [entries.get(name) or Entry(name, name, undoable[name]) for name in names]


class Course:
    """One claimed saga: its log, and the ways that it is committed."""

    def __init__(
        self, run: Run, client: StoreClient, name: str, claimed_at: int | None = None, draft: Log | None = None
    ) -> None:
        """``claimed_at``: on the store's clock, when it was first claimed, where that is known. ``draft``: what the
        note of ``run`` was made from; it is the log where the record has that very note."""
        self.run = run
        self.client = client
        self.name = name
        self.log = draft if draft is not None and run.answer.note == run.note else read(noted(run))
        self._monotonic = run.runtime.monotonic
        self._offset = run.token - int(self._monotonic() * 1e6)
        if self.log.written_at < 0:
            self.log.written_at = min(-self.log.written_at, self.now() if claimed_at is None else claimed_at)
        #: Whether whoever had it before ended without a word. The count tells where the store no longer can: its lease
        #: lapsed, and somebody took it and gave it back.
        self.interrupted = not self.log.doubt and (run.lapsed or run.attempt != self.log.settled + 1)
        if self.interrupted:
            self.log.interrupted()

    def now(self) -> int:
        """The store's time, as far as this process can know it without asking."""
        monotonic = self._monotonic
        return self._offset + int(monotonic() * 1e6)

    def forgotten(self, part: Part) -> bool:
        """Whether ``part``, of which nobody knows what came of it, may have happened so long ago that what did it once
        no longer remembers it."""
        since = min(part.unknown_since or self.log.written_at, self.log.written_at)
        return self.now() - since >= self.run.policy.retention

    def end(self, part: Part, state: State, error: str = "") -> None:
        part.state, part.error, part.ended = state, error, self.now()

    def commit(self) -> Coroutine[Any, Any, None]:
        """Write the log down. `LeaseLost` where another goes on with it: stop."""
        return note(self.run, self.client, self._written())

    async def done(self, results: Mapping[str, bytes]) -> None:
        op = completion_of(self.run, packed(results))
        assert isinstance(op, Settlement)
        await self._settle(op, "completed")

    async def failed(self) -> SagaFailed:
        """Record that it failed, and every duplicate is told; gives what to raise."""
        run, log = self.run, self.log
        undone = [entry.name for entry in log.entries if entry.undo.state == "done"]
        error = SagaFailed(
            f"saga {show(self.name)} {show(log.id)!r} failed{f' at step {log.failed_at}' if log.failed_at else ''}: "
            f"{log.why}; {'compensated: ' + ', '.join(reversed(undone)) if undone else 'there was nothing to undo'}",
            log.failure,
            log.failed_at,
        )
        op = self._ending("failed", run.policy.retention)
        op.error = run.seal(encode_error(error), run.generation)
        await self._settle(op, "failed", log.why)
        return error

    async def free(self) -> None:
        """Leave it for the next runner, written down."""
        await self._settle(self._ending("free", self.run.policy.hold), "released")

    async def give_back(self) -> None:
        """Leave it as it was found, since nothing of it was run: also that it was interrupted, if it was."""
        op = self._ending("free", self.run.policy.hold)
        op.refund = True
        await self._settle(op, "released")

    async def doubt(self, entry: Entry, why: str) -> NoReturn:
        """Nobody knows, or nobody can: an operator decides."""
        self.log.doubtful, self.log.doubt = entry.name, why
        await self._settle(self._ending("in_doubt", self.run.policy.hold), "in_doubt", why)
        raise InDoubt(in_doubt(self.name, self.log))

    async def leave(self, why: str) -> None:
        """As `free`, for one that has an error to raise: never raises an `Exception` itself."""
        await leave(self.run, self.client, "free", why, hidden(self.run, self._written(settled=True)))

    def _written(self, settled: bool = False) -> bytes:
        self.log.written_at = self.now()
        if settled:
            self.log.settled = self.run.attempt
        return _encode(self.log)

    def _ending(self, state: Literal["failed", "free", "in_doubt"], retention: int) -> Settlement:
        run = self.run
        return Settlement(
            scope=run.scope,
            key=run.stored_key,
            owner=run.owner,
            token=run.token,
            state=state,
            retention=retention,
        )

    async def _settle(self, op: Settlement, kind: str, detail: str = "") -> None:
        run = self.run
        run.stop_clock()
        if not op.refund:
            op.note = hidden(run, self._written(settled=True))
        applied = run.protected and await self.client.settle(op)  # as in `notes.note`
        run.runtime.waiters.wake((run.scope, run.stored_key))
        run.emit(kind if applied else "fenced", detail)
        if not applied:
            raise LeaseLost(
                f"saga {show(self.name)} {show(self.log.id)!r}: the lease ended and another goes on with it, or an "
                "operator settled it; what this attempt did last was not recorded"
            )


def in_doubt(name: str, log: Log) -> str:
    """What is said about a saga in doubt."""
    what = f"{'the compensation of ' if log.undoing else ''}step {log.doubtful}"
    return (
        f"saga {show(name)} {show(log.id)!r} is in doubt at {what}: {log.doubt}; find out, then decide: "
        "effectonce sagas resolve"
    )
