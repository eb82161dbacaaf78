"""`Saga`: several steps that no transaction can hold together, and the compensations that undo them.

    saga = eo.Saga("order-fulfilment", store, input=Order)

    @saga.step()
    def reserve(order: Order) -> Reservation: ...

    @reserve.compensate
    def release(order: Order, done: eo.Done) -> None:
        warehouse.release(done[reserve])

    @saga.step(retry=eo.Retry(5), timeout="10s")
    def charge(order: Order, done: eo.Done) -> Receipt: ...

    saga.run("order-1", order)

The end of every step is committed to the saga's one record, so that after a crash another process resumes where this
one stopped. A step that fails for good turns the saga around: what is done is compensated, in reverse order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

from msgspec import Raw

from effectonce.core.claim_notes import read_listed_note, seal_note
from effectonce.core.codec import Codec
from effectonce.core.guarded_call.begin import begin, prepare_noted_run
from effectonce.core.guarded_call.run import Policy, StoreRun
from effectonce.core.retry import Retry
from effectonce.core.run_sync import refuse_in_event_loop, run_sync
from effectonce.core.store_clients import StoreClient
from effectonce.core.unfinished import list_pages, never_stop
from effectonce.errors import ConfigurationError, KeyTooLong, NotInDoubt, SagaFailed, SyncAsyncMismatch, show
from effectonce.guard.introspection import return_type
from effectonce.guard.options import UNFINISHED_RETENTION_US, check_scope, policy_options
from effectonce.keys import MAX_KEY, Key, encode_key
from effectonce.record import Record
from effectonce.store import Store, require_store
from effectonce.values.durations import Duration, micros
from effectonce.values.scopes import SAGA_PREFIX

from .claimed_saga import ClaimedSaga
from .decisions import SagaDecision, apply_decision
from .diagram import draw_diagram
from .inputs import SagaInputs
from .log import LoggedStep, SagaLog, decode_log, encode_log
from .migrations import SagaMigration, fit_to_definition
from .recovery import ResumeCounts, SagaRecovery, SagaSweeper
from .runner import record_saga, run_saga
from .steps import MAX_STEP_NAME_BYTES, STEP_RETRY, Done, Step, StepDecorator, check_step_name, make_step_function

logger = logging.getLogger("effectonce")

In = TypeVar("In")


class Saga(Generic[In]):
    """Steps that run in order, each committed when it is done, and compensated in reverse order when one fails.

    Each step has mode L: none is lost, and one whose end was not committed runs again. So a step must be safe to
    repeat under `current().key`, which stays the same: pass it to an `Inbox`, an `Intents` operation, `once` or the
    provider. `once` and `Intents` inside a step remember for the saga's ``retention`` at least (give an `Inbox` one
    that is as long); a step that was interrupted longer ago is in doubt, and not run blindly.

    The last outcome of a step counts for all its attempts. A step that cannot know its outcome raises
    `OutcomeUnknown`; a timeout, a reset or a 5xx of an HTTP client counts as that. `resume` then runs it again, and
    after a day an operator decides. After such a network error only an answer of the service (a 402, or an error
    raised from one), or an error that its ``retry`` calls final (``on={CardDeclined: "dead"}``), proves that it did not
    happen; after any other it is in doubt.

    If any step is ``async def``, run the saga with `arun` and `aresume`; plain steps then run in threads.
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
        require_store(store, "Saga(name, {}, …)")
        check_scope(f"{SAGA_PREFIX}{name}")
        self.name = name
        self.store = store
        self.inputs = SagaInputs(name, input)
        self.version = version
        self.steps: dict[str, Step[Any]] = {}
        self.migrations: dict[str, SagaMigration] = {}
        self.scope = f"{SAGA_PREFIX}{name}"
        # Escaped, so that no two sagas make one key: `a/b` of `c` is not `a` of `b/c`.
        self.key_prefix = name.replace("\\", "\\\\").replace("/", "\\/") + "/"
        self._max_id_bytes = MAX_KEY - len(f"{self.key_prefix}//compensate".encode()) - MAX_STEP_NAME_BYTES
        self._recovery = SagaRecovery(self)
        self._policy = Policy(
            scope=self.scope,
            codec=Codec(dict[str, Raw], store.max_result),
            unfinished_retention_us=UNFINISHED_RETENTION_US,
            logs_failures=True,
            **policy_options(lease=lease, retention=retention, wait=wait, max_run=max_run, permanent=(SagaFailed,)),
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
    ) -> StepDecorator:
        """Make a function the next step: ``fn(input)`` or ``fn(input, done)``, sync or async.

        ``retry``: how often it is tried before the saga turns around (default: once), and after how many processes that
        died in it (``max_crashes``) an operator has to look. A step that exceeds its ``timeout`` turns the saga around
        as well; it then has ``grace`` to come to an end, and is compensated if it succeeds late. If it still runs after
        that, it is in doubt. ``name`` keeps the old name of a function that you rename.
        """
        timeout_s = None if timeout is None else micros(timeout, "timeout") / 1e6
        grace_s = micros(grace, "grace") / 1e6

        def decorate(function: Any) -> Step[Any]:
            step_name = name or str(getattr(function, "__name__", ""))
            check_step_name(step_name, self.steps)
            do = make_step_function(function, retry, timeout_s, grace_s)
            if not self.steps:
                self.store.take_scope(self.scope, _definition_of(function))
            step: Step[Any] = Step(step_name, do, Codec(return_type(function, returns), self.store.max_result))
            self.steps[step_name] = step
            return step

        return decorate

    def migrate(self, version: str, renamed: Mapping[str, str], *, drop_compensation: Collection[str] = ()) -> None:
        """Take over sagas in flight that were started under ``version``. Each step continues as the one of the same
        name, or as the one that it is ``renamed`` to. New steps must come after those that have run.

        ``drop_compensation``: steps, by their current names, whose compensation was removed on purpose."""
        unknown = {old: f"is to become {show(new)}" for old, new in renamed.items() if new not in self.steps}
        unknown |= dict.fromkeys(set(drop_compensation) - self.steps.keys(), "is to lose its compensation")
        for name, change in unknown.items():
            raise ConfigurationError(
                f"{show(name)} {change}, which is not a step of saga {self.name}; "
                f"its steps are {', '.join(self.steps) or 'not defined yet'}"
            )
        self.migrations[version] = SagaMigration(dict(renamed), frozenset(drop_compensation))

    @property
    def undoable(self) -> dict[str, bool]:
        """The names of the steps, and whether each has a compensation."""
        return {name: step.undo is not None for name, step in self.steps.items()}

    def fit(self, log: SagaLog) -> None:
        """Change ``log`` into one of this definition. Raises `SagaChanged` where no migration says how they fit."""
        fit_to_definition(log, self.version, self.undoable, self.migrations)

    @property
    def is_async(self) -> bool:
        """Whether a step or a compensation is ``async def``."""
        return any(step.do.is_async or (step.undo is not None and step.undo.is_async) for step in self.steps.values())

    def diagram(self) -> str:
        """Draw the saga as a Mermaid flowchart."""
        return draw_diagram(self.steps)

    # -- running

    def run(self, id: Key, input: In) -> Done:
        """Run the saga ``id`` to its end and return the results of its steps; a repeated call returns the same.

        Raises `SagaFailed` when a step failed and what was done is compensated, `InDoubt` when an operator has to
        decide, `Retryable` when it is not finished yet and `resume` will continue it, `PayloadMismatch` for another
        input under the same id.
        """
        self._require_sync()
        run = self._prepare_new(id, input)
        return run_sync(run_saga(self, run, run.runtime.sync_client()))

    async def arun(self, id: Key, input: In) -> Done:
        """`run`, in an event loop."""
        run = self._prepare_new(id, input)
        return await run_saga(self, run, run.runtime.async_client())

    def start(self, id: Key, input: In) -> None:
        """Record the saga and leave it to `resume`, here or in another process. A repeated call changes nothing."""
        run = self._prepare_new(id, input)
        run_sync(record_saga(self, run, run.runtime.sync_client()))

    async def astart(self, id: Key, input: In) -> None:
        """`start`, in an event loop."""
        run = self._prepare_new(id, input)
        await record_saga(self, run, run.runtime.async_client())

    def _require_sync(self) -> None:
        if self.is_async:
            raise SyncAsyncMismatch(f"saga {self.name} has steps that are async: use arun, aresume and acompensate")
        refuse_in_event_loop(f"saga {self.name} would block the running event loop: use arun, aresume or acompensate")

    def _prepare_new(self, id: Key, input: In) -> StoreRun:
        """Make the run of a saga that may be new. Raises `ConfigurationError` if its input cannot be stored."""
        if not self.steps:
            raise ConfigurationError(f"saga {self.name} has no steps; define some with @saga.step()")
        body, input_fingerprints = self.inputs.freeze(input)
        try:
            name = encode_key(id, limit=self._max_id_bytes)
        except KeyTooLong as error:
            raise KeyTooLong(
                f"the id of a saga {show(self.name)} may have {self._max_id_bytes} bytes, since the keys of its steps "
                f"and of their compensations are made of it; {show(id, 48)!r} has more; nothing was done"
            ) from error
        run = self.prepare_run(name, input_fingerprints)
        entries = [LoggedStep(step, step, undoable) for step, undoable in self.undoable.items()]
        log = SagaLog(name, self.version, body, entries, written_at=-run.runtime.now())  # `written_by_process_clock`
        if run.runtime.tracer is not None:
            log.trace = run.runtime.tracer.current_context()
        run.note = seal_note(run, encode_log(log))
        return run

    def prepare_run(self, id: str, input_fingerprints: bytes = b"") -> StoreRun:
        """Make a run of the saga ``id``, which is not claimed yet. Raises `ConfigurationError` on a store without
        notes."""
        return prepare_noted_run(self.store.runtime, self._policy, id, input_fingerprints, "sagas")

    # -- recovery

    def resume(self, *, limit: int | None = None, stop: Callable[[], bool] = never_stop) -> ResumeCounts:
        """Continue every saga that was started, or left behind by a process that died. With ``limit``, continue so
        many, and the next call continues there. ``stop`` is asked before each: once it returns True, the rest is
        left. It is safe to run several at once."""
        self._require_sync()
        return self._recovery.resume(limit, stop)

    async def aresume(self, *, limit: int | None = None, stop: Callable[[], bool] = never_stop) -> ResumeCounts:
        """`resume`, in an event loop; several sagas at a time."""
        return await self._recovery.aresume(limit, stop)

    def sweeper(self, every: Duration = "30s") -> SagaSweeper:
        """Return a thread that calls `resume` again and again: ``with saga.sweeper():``."""
        return SagaSweeper(self, every)

    # -- for operators

    def log(self, record: Record) -> SagaLog:
        """Read the log of a record of this saga: its input, and how far each step has come."""
        return decode_log(read_listed_note(record, self.store.runtime.privacy))

    def get(self, id: Key) -> Record | None:
        """Return the record of a saga, or None."""
        return self.store.get(self.scope, id)

    def records(self, which: Literal["open", "in_doubt", "all"] = "open") -> Iterator[Record]:
        """Iterate over the sagas that are not finished, those that wait for an operator, or all that are kept."""
        state = "in_doubt" if which == "in_doubt" else None
        for page in list_pages(self.store.list, scope=self.scope, unfinished=which == "open", state=state):
            yield from (record for record in page.records if record.note is not None)

    def compensate(self, id: Key) -> None:
        """Turn an unfinished saga around and undo what is done. Returns when everything is undone.

        Raises `InProgress` while another process runs it, and an error that says so, without a change, for a saga that
        has ended or waits for an operator.
        """
        self._require_sync()
        run_sync(self._compensate(id, self.store.runtime.sync_client()))

    async def acompensate(self, id: Key) -> None:
        """`compensate`, in an event loop."""
        await self._compensate(id, self.store.runtime.async_client())

    async def _compensate(self, id: Key, client: StoreClient) -> None:
        if self.get(id) is None:
            raise ConfigurationError(f"there is no saga {self.name} with id {show(id)!r}; see effectonce sagas list")
        run = self.prepare_run(encode_key(id))
        try:
            await run_saga(self, run, client, compensate=True)
        except SagaFailed:
            return
        raise ConfigurationError(f"saga {show(run.key)!r} is done: there is nothing to compensate")

    def resolve(self, id: Key, outcome: SagaDecision, *, result: Any = None, who: str = "") -> None:
        """Decide what is in doubt about a saga; the next `resume` continues from there.

        For a step: it happened (``done``, with its ``result``), it did not (``not_done``: the rest is compensated), or
        it runs again under a new provider key (``retry``). For a compensation: it was done by hand (``done``), or
        ``retry``. ``abandon`` ends the saga as failed, and undoes nothing more. Raises `NotInDoubt`, without a change,
        where there is nothing to decide. The decision, and ``who`` made it, is emitted and logged.
        """
        if outcome not in ("done", "not_done", "retry", "abandon"):
            raise ConfigurationError(f"resolve takes 'done', 'not_done', 'retry' or 'abandon', not {outcome!r}")
        if result is not None and outcome != "done":
            raise ConfigurationError(f"a result goes with 'done', not with {outcome!r}; nothing was changed")
        record = self.get(id)
        if record is None or record.state != "in_doubt":
            state = "not known" if record is None else record.state.replace("free", "released")
            raise NotInDoubt(f"saga {self.name} {show(id)!r} is {state}, not in doubt; nothing was changed")
        if outcome == "abandon":
            self.store.resolve(self.scope, id, "abandon", retention=self._policy.retention_us / 1e6, quiet=True)
        else:
            self._decide(self.log(record), outcome, result)  # refuses a wrong decision while nothing is changed yet
            self.store.resolve(
                self.scope, id, "retry", retention=self._policy.unfinished_retention_us / 1e6, quiet=True
            )
            run_sync(self._write_decision(self.prepare_run(encode_key(id)), outcome, result))
        who = who or "this program"
        logger.warning("saga %s %s was resolved as %s by %s", self.name, show(id), outcome, who)
        self.store.runtime.emit("resolved", self.scope, encode_key(id), detail=f"{outcome} by {who}")

    def _decide(self, log: SagaLog, outcome: SagaDecision, result: Any) -> None:
        self.fit(log)
        apply_decision(log, self.steps, outcome, result)

    async def _write_decision(self, run: StoreRun, outcome: SagaDecision, result: Any) -> None:
        """Claim the saga and commit the decision to its log. Until then the log says "in doubt", so that a runner that
        claims it first puts it back."""
        client = run.runtime.sync_client()
        try:
            await begin(run, client)
            claimed = ClaimedSaga(run, client, self.name)
            self._decide(claimed.log, outcome, result)
            await claimed.release()
        finally:
            run.end()

    def __repr__(self) -> str:
        return f"<saga {show(self.name)} version {show(self.version)}: {', '.join(self.steps)}>"


def _definition_of(function: Any) -> Any:
    """Return the object that identifies the definition of a saga by its first step: the code of a step that a factory
    defines, since a factory that is called twice defines the same saga, and the function itself otherwise."""
    return function.__code__ if "<locals>" in getattr(function, "__qualname__", "") else function
