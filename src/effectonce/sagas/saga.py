"""Sagas: several steps that no transaction can hold together, and what undoes them.

    saga = eo.Saga("order-fulfilment", store, input=Order)

    @saga.step()
    def reserve(order: Order) -> Reservation: ...

    @reserve.compensate
    def release(order: Order, done: eo.Done) -> None:
        warehouse.release(done[reserve])

    @saga.step(retry=eo.Retry(5), timeout="10s")
    def charge(order: Order, done: eo.Done) -> Receipt: ...

    saga.run("order-1", order)

Every end of a step is written down in the saga's one record, so that after a crash another process goes on where this
one stopped. A step that fails for good turns the saga around: what is done is compensated, in reverse order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import Raw, Struct

from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare
from effectonce.core.guarded_call.run import Policy, Run
from effectonce.core.interrupts import is_own_exit, remember_signal_handlers
from effectonce.core.notes import hidden, note_in
from effectonce.core.retry import Retry
from effectonce.core.run_sync import run_sync
from effectonce.core.store_runtime import StoreClient
from effectonce.core.store_runtime import log as logger
from effectonce.core.unfinished import AT_ONCE, Leftovers, never
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InDoubt,
    KeyTooLong,
    LeaseLost,
    NotInDoubt,
    PermanentFailure,
    ResultNotStored,
    Retryable,
    SagaFailed,
    SyncAsyncMismatch,
    show,
)
from effectonce.guard.introspection import return_type
from effectonce.guard.options import check_scope
from effectonce.keys import MAX_KEY, Key, encode_key
from effectonce.record import Record
from effectonce.store import Store
from effectonce.values.durations import Duration, micros

from .decisions import Word, decide
from .inputs import Inputs
from .log import Course, Entry, Log, Migration, fit, frozen, read
from .runner import Draft, through
from .steps import MAX_NAME, STEP_RETRY, Decorate, Done, Step, check_name, diagram, work
from .sweeper import Sweeper

In = TypeVar("In")

FOREVER: Final = 3650 * 86_400_000_000
"""How long what is not finished is kept: until somebody has finished it."""


class Resumed(Struct, frozen=True):
    """What one `Saga.resume` came to, by number of sagas."""

    done: int = 0
    failed: int = 0  # and compensated
    in_doubt: int = 0
    later: int = 0  # what a step did is not known yet, the store did not answer, or another runs it
    refused: int = 0  # begun under another definition, or not readable: the log says why


class Saga(Generic[In]):
    """Steps that run in order, each written down when it is done, and compensated in reverse where one fails.

    Mode L, by the step: none is lost, and one whose end was not written down runs again. So a step must be safe to
    repeat under `current().key`, which stays the same: give it to an `Inbox`, an `Intents` operation, `once` or the
    provider. What `once` and `Intents` do inside a step is remembered for the saga's ``retention`` at least (give an
    `Inbox` one that is as long); a step that was interrupted longer ago is in doubt, and not run blindly.

    What a step says last holds for all its attempts. Where it cannot know it raises `OutcomeUnknown`, and a timeout, a
    reset or a 5xx of an HTTP client is taken for that: `resume` runs it again, and after a day an operator decides.
    After such an error of the network only an answer of the service (a 402, or what is raised from one), or an error
    that its ``retry`` calls final (``on={CardDeclined: "dead"}``), says that it did not happen; any other is in doubt.

    A saga with a step that is ``async def`` is run by `arun` and `aresume`, where plain steps run in threads.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        input: type[In],
        version: str = "1",
        lease: Duration = "30s",
        retention: Duration = "30d",
        wait: Duration | None = None,
        max_run: Duration = "1h",
    ) -> None:
        check_scope(f"saga/{name}")
        self.name = name
        self.store = store
        self.inputs = Inputs(name, input)
        self.version = version
        self.steps: dict[str, Step[Any]] = {}
        self.migrations: dict[str, Migration] = {}
        self.scope = f"saga/{name}"
        # Escaped, so that no two sagas make one key: `a/b` of `c` is not `a` of `b/c`.
        self.key_prefix = name.replace("\\", "\\\\").replace("/", "\\/") + "/"
        self._longest_id = MAX_KEY - len(f"{self.key_prefix}//compensate".encode()) - MAX_NAME
        self._leftovers = Leftovers(store, self.scope)
        self._policy = Policy(
            scope=self.scope,
            codec=Codec(dict[str, Raw], store.max_result),
            lease=micros(lease, "lease"),
            retention=micros(retention, "retention"),
            unfinished_retention=FOREVER,
            wait=None if wait is None else micros(wait, "wait") / 1e6,
            max_run=micros(max_run, "max_run") / 1e6,
            permanent=(SagaFailed,),
        )

    # -- the definition

    def step(
        self,
        *,
        name: str | None = None,
        retry: Retry = STEP_RETRY,
        timeout: Duration | None = None,
        grace: Duration = "30s",
        returns: Any = ...,
    ) -> Decorate:
        """Make a function the next step: ``fn(input)`` or ``fn(input, done)``, sync or async.

        ``retry``: how often it is tried before the saga turns around (default: once), and after how many processes that
        ended in it (``max_crashes``) an operator has to look. ``timeout`` turns it around as
        well; the step is then given ``grace`` to come to an end, and is compensated where it has succeeded late. What
        still runs after that is in doubt. ``name`` keeps the name of a function that is renamed.
        """
        limit = None if timeout is None else micros(timeout, "timeout") / 1e6
        patience = micros(grace, "grace") / 1e6

        def decorate(function: Any) -> Step[Any]:
            called = name or str(getattr(function, "__name__", ""))
            check_name(called, self.steps)
            do = work(function, retry, limit, patience)
            if not self.steps:
                self.store.take_scope(self.scope, _definition(function))
            made: Step[Any] = Step(called, do, Codec(return_type(function, returns), self.store.max_result))
            self.steps[called] = made
            return made

        return decorate

    def migrate(self, version: str, renamed: Mapping[str, str], *, not_undone: Collection[str] = ()) -> None:
        """Take over sagas in flight that were begun under ``version``: each step goes on as the one of the same name,
        or as the one that it is ``renamed`` to. New steps must come after those that have run.

        ``not_undone``: steps, by their names now, that had a compensation and on purpose have none any more."""
        said = {old: f"to become {show(new)}" for old, new in renamed.items() if new not in self.steps}
        said |= dict.fromkeys(set(not_undone) - self.steps.keys(), "not to be undone")
        for name, what in said.items():
            raise ConfigurationError(
                f"{show(name)} is {what}, which is no step of saga {self.name}; "
                f"its steps are {', '.join(self.steps) or 'not defined yet'}"
            )
        self.migrations[version] = Migration(dict(renamed), frozenset(not_undone))

    @property
    def undoable(self) -> dict[str, bool]:
        """Its steps by name, and whether each has a compensation."""
        return {name: step.undo is not None for name, step in self.steps.items()}

    @property
    def is_async(self) -> bool:
        """Whether a step or a compensation is ``async def``."""
        return any(step.do.is_async or (step.undo is not None and step.undo.is_async) for step in self.steps.values())

    def diagram(self) -> str:
        """The saga as a Mermaid flowchart."""
        return diagram(self.steps)

    # -- running

    def run(self, id: Key, input: In) -> Done:
        """Run the saga ``id`` to its end and give what its steps gave; again, it gives the same.

        `SagaFailed` where a step failed and what was done is compensated, `InDoubt` where an operator has to decide,
        `Retryable` where it is not finished yet and `resume` will go on; `PayloadMismatch` for another input.
        """
        self._require_sync()
        run, draft = self._begun(id, input)
        return run_sync(through(self, run, run.runtime.sync_client(), draft=draft))  # type: ignore[return-value]

    async def arun(self, id: Key, input: In) -> Done:
        """`run`, in an event loop."""
        run, draft = self._begun(id, input)
        return await through(self, run, run.runtime.async_client(), draft=draft)  # type: ignore[return-value]

    def start(self, id: Key, input: In) -> None:
        """Write the saga down and leave it to `resume`, here or elsewhere. Again, it does nothing more."""
        run, draft = self._begun(id, input)
        run_sync(_quietly(through(self, run, run.runtime.sync_client(), "write", draft=draft)))

    async def astart(self, id: Key, input: In) -> None:
        """`start`, in an event loop."""
        run, draft = self._begun(id, input)
        await _quietly(through(self, run, run.runtime.async_client(), "write", draft=draft))

    def _require_sync(self) -> None:
        if self.is_async:
            raise SyncAsyncMismatch(f"saga {self.name} has steps that are async: use arun, aresume and acompensate")
        if asyncio._get_running_loop() is not None:
            raise SyncAsyncMismatch(
                f"saga {self.name} would block the running event loop: use arun, aresume or acompensate"
            )

    def _begun(self, id: Key, input: In) -> tuple[Run, Draft]:
        """The run of a saga that may be new; `ConfigurationError` where its input cannot be frozen."""
        if not self.steps:
            raise ConfigurationError(f"saga {self.name} has no steps; define some with @saga.step()")
        body, read_back, prints = self.inputs.freeze(input)
        try:
            name = encode_key(id, limit=self._longest_id)
        except KeyTooLong as error:
            raise KeyTooLong(
                f"the id of a saga {show(self.name)} may have {self._longest_id} bytes, since the keys of its steps "
                f"and of what undoes them are made of it; {show(id, 48)!r} has more; nothing was done"
            ) from error
        run = self._run(name, prints)
        entries = [Entry(step, step, made.undo is not None) for step, made in self.steps.items()]
        log = Log(name, self.version, body, entries, written_at=-run.runtime.now())
        run.note = hidden(run, frozen(log))
        return run, (log, read_back)

    def _run(self, id: str, prints: bytes = b"") -> Run:
        runtime = self.store.runtime
        if not runtime.backend.capabilities.notes:
            raise ConfigurationError(
                f"{runtime.backend!r} keeps no notes, which sagas need; use sqlite://, postgresql:// or mysql://"
            )
        return prepare(runtime, self._policy, id, prints)

    # -- recovery

    def resume(self, *, limit: int | None = None, stop: Callable[[], bool] = never) -> Resumed:
        """Go on with every saga that was started, or left behind by a process that died; with ``limit`` with so many,
        and the next call goes on from there. ``stop`` is asked before each: once it is true, the rest is left. Safe to
        run several at once."""
        self._require_sync()
        remember_signal_handlers()
        client = self.store.runtime.sync_client()
        came: Counter[str] = Counter()
        for page in self._left_behind(limit):
            came.update(run_sync(self._came_to(*each, client)) for each in page if not stop())
            if stop():
                break
        return Resumed(**came)

    async def aresume(self, *, limit: int | None = None, stop: Callable[[], bool] = never) -> Resumed:
        """`resume`, in an event loop; several at a time."""
        remember_signal_handlers()
        client = self.store.runtime.async_client()
        came: Counter[str] = Counter()
        pages = self._left_behind(limit)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for at in range(0, len(page), AT_ONCE):
                if stop():
                    return Resumed(**came)
                came.update(await asyncio.gather(*(self._came_to(*each, client) for each in page[at : at + AT_ONCE])))
        return Resumed(**came)

    def _left_behind(self, limit: int | None) -> Iterator[list[tuple[str, int]]]:
        """By id, and when each was first claimed, or soon after; long before, where that cannot be known."""
        for page in self._leftovers.pages(limit):
            found = [(self._id(record), record) for record in page]
            yield [
                (id, record.changed_at if record.attempts <= 1 else record.created_at)
                for id, record in found
                if id is not None
            ]

    def _id(self, record: Record) -> str | None:
        """What a record's saga is known by; with ``private=`` that is not the record's key."""
        try:
            return self.log(record).id
        except CorruptRecord as error:
            logger.warning("saga %s %s was not resumed: %s", self.name, show(record.key), error)
            return None

    async def _came_to(self, id: str, claimed_at: int, client: StoreClient) -> str:
        """What going on with one saga came to: a name of `Resumed`. One that cannot be keeps no other waiting."""
        run: Run | None = None
        try:
            run = self._run(id)
            await through(self, run, client, claimed_at=claimed_at)
        except (InDoubt, Retryable, LeaseLost, PermanentFailure, ResultNotStored) as told:
            if isinstance(told, InDoubt):
                return "in_doubt"
            if isinstance(told, PermanentFailure):
                return "failed"
            return "done" if isinstance(told, ResultNotStored) else "later"
        except (SystemExit, asyncio.CancelledError) as ended:
            if (
                not is_own_exit(ended) or run is None or not run.protected
            ):  # or this is a child that the step has forked, and ends
                raise
            text = "saga %s %s: a step ended with %s, and nobody knows whether it happened; it is resumed again later"
            logger.warning(text, self.name, show(id), type(ended).__name__)
            return "later"
        except Exception as error:
            logger.warning("saga %s %s was not resumed: %s: %s", self.name, show(id), type(error).__name__, error)
            return "refused"
        return "done"

    def sweeper(self, every: Duration = "30s") -> Sweeper:
        """A thread that calls `resume` again and again: ``with saga.sweeper():``."""
        return Sweeper(self, micros(every, "every") / 1e6)

    # -- people

    def log(self, record: Record) -> Log:
        """What a record of this saga says: its input, and how far each step has come."""
        return read(note_in(record, self.store.runtime.privacy))

    def get(self, id: Key) -> Record | None:
        """The record of a saga, or None."""
        return self.store.get(self.scope, id)

    def records(self, which: Literal["open", "in_doubt", "all"] = "open") -> Iterator[Record]:
        """The sagas that are not finished, wait for an operator, or all that are kept."""
        for page in self._pages(unfinished=which == "open", state="in_doubt" if which == "in_doubt" else None):
            yield from (record for record in page if record.note is not None)

    def _pages(self, **options: Any) -> Iterator[list[Record]]:
        cursor: str | None = None
        while True:
            page = self.store.list(scope=self.scope, cursor=cursor, **options)
            yield page.records
            cursor = page.cursor
            if cursor is None:
                return

    def compensate(self, id: Key) -> None:
        """Turn a saga around that is not finished: undo what is done. Returns when that is so.

        `InProgress` while another runs it; one that has ended, or waits for an operator, says so and stays.
        """
        self._require_sync()
        run = self._known(id)
        try:
            run_sync(through(self, run, run.runtime.sync_client(), "compensate"))
        except SagaFailed:
            return
        raise ConfigurationError(f"saga {show(run.key)!r} is done: there is nothing to turn around")

    async def acompensate(self, id: Key) -> None:
        """`compensate`, in an event loop."""
        run = self._known(id)
        try:
            await through(self, run, run.runtime.async_client(), "compensate")
        except SagaFailed:
            return
        raise ConfigurationError(f"saga {show(run.key)!r} is done: there is nothing to turn around")

    def _known(self, id: Key) -> Run:
        """The run of a saga that is there; `ConfigurationError` for an id that nobody knows."""
        if self.get(id) is None:
            raise ConfigurationError(f"no saga {self.name} is known by {show(id)!r}; look at effectonce sagas list")
        return self._run(encode_key(id))

    def resolve(self, id: Key, word: Word, *, result: Any = None, who: str = "") -> None:
        """Decide what is in doubt about a saga; the next `resume` goes on from there.

        Of a step: it happened (``done``, with its ``result``), it did not (``not_done``: the rest is compensated), or
        run it again under a new provider key (``retry``). Of a compensation: it was done by hand (``done``), or
        ``retry``. ``abandon`` ends the saga as failed, and undoes nothing more. `NotInDoubt`, and no change, where
        there is nothing to decide. What was said, and by ``who``, is an event and a line in the log.
        """
        if word not in ("done", "not_done", "retry", "abandon"):
            raise ConfigurationError(f"resolve takes 'done', 'not_done', 'retry' or 'abandon', not {word!r}")
        if result is not None and word != "done":
            raise ConfigurationError(f"a result goes with 'done', not with {word!r}; nothing was changed")
        record = self.get(id)
        if record is None or record.state != "in_doubt":
            raise NotInDoubt(
                f"saga {self.name} {show(id)!r} is {record.state if record else 'not known'}, not in doubt; "
                "nothing was changed"
            )
        if word == "abandon":
            self.store.resolve(self.scope, id, "abandon", retention=self._policy.retention / 1e6, quiet=True)
        else:
            self._decide(self.log(record), word, result)  # refused here, while nothing is changed
            self.store.resolve(self.scope, id, "retry", retention=self._policy.hold / 1e6, quiet=True)
            run_sync(self._resolved(self._run(encode_key(id)), word, result))
        who = who or "this program"
        logger.warning("saga %s %s was resolved as %s by %s", self.name, show(id), word, who)
        self.store.runtime.emit("resolved", self.scope, encode_key(id), detail=f"{word} by {who}")

    def _decide(self, log: Log, word: Word, result: Any) -> None:
        fit(log, self.version, self.undoable, self.migrations)
        decide(log, self.steps, word, result)

    async def _resolved(self, run: Run, word: Word, result: Any) -> None:
        """Write the word into the log. Until that is done the log says "in doubt", so whoever takes it puts it back."""
        client = run.runtime.sync_client()
        try:
            await begin(run, client)
            course = Course(run, client, self.name)
            self._decide(course.log, word, result)
            await course.free()
        finally:
            run.active = False
            run.end()

    def __repr__(self) -> str:
        return f"<saga {show(self.name)} version {show(self.version)}: {', '.join(self.steps)}>"


def _definition(function: Any) -> Any:
    """What tells two definitions of one name apart. A factory that is called twice defines the same saga twice."""
    return function.__code__ if "<locals>" in getattr(function, "__qualname__", "") else function


async def _quietly(started: Awaitable[Any]) -> None:
    """What is there already has been started."""
    try:
        await started
    except (InDoubt, PermanentFailure, ResultNotStored):
        pass
    except Retryable as error:
        if error.code != "in-progress":
            raise
