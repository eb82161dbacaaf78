"""`IntentRunner`: sends one claimed intent, or looks up its outcome, and settles it.

Written once for sync and async operations: everything that waits goes through the `StoreClient`. The order is the
promise: the send is committed to the log, then the function is called, then its outcome is settled. After a crash in
between, the log says that the request may have been sent, and `ResendRules` decides what is safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from effectonce.core.error_text import describe_error
from effectonce.core.failure_log import caller_logs_failures, log_failed_attempt
from effectonce.core.guarded_call.finish import encode_result, finish
from effectonce.core.interrupts import is_own_exit
from effectonce.core.retry import mark_final
from effectonce.errors import (
    ConfigurationError,
    CorruptRecord,
    InDoubt,
    OutcomeUnknown,
    PermanentFailure,
    Retryable,
    SyncAsyncMismatch,
    show,
)
from effectonce.guard.introspection import refuse_lazy
from effectonce.providers import Verdict, classify

from .claimed_intent import ClaimedIntent

if TYPE_CHECKING:
    from .operation import IntentOperation


_IN_DOUBT: Final = "is in doubt: look it up at the provider, then decide with effectonce intents resolve"
_SENT_AGAIN: Final = "its next delivery, or a recovery, tries it again"


class IntentResult(NamedTuple):
    """How an intent ended. An error of the user's function is returned, not raised: a coroutine would turn its
    StopIteration into a RuntimeError."""

    value: Any = None
    error: BaseException | None = None


class IntentRunner:
    """Runs one claimed intent.

    In a recovery (``recovering``) a function that ends itself (`sys.exit`) leaves an unknown outcome instead of ending
    the process, and a transactional success waits for the delivery that writes its rows.
    """

    def __init__(self, operation: IntentOperation[Any, Any], claimed: ClaimedIntent, recovering: bool) -> None:
        self._operation = operation
        self._claimed = claimed
        self._recovering = recovering
        self._defect: Exception | None = None  # what the classifier raised, or the reading of the response

    async def run(self) -> tuple[Verdict, Exception | None]:
        """Send the intent, unless its outcome is recorded or the reconciler knows it. Returns the verdict, and the
        error that the operation raised."""
        request, verdict = await self._read_request()
        if verdict is None:
            verdict = await self._reconcile(request)
        if verdict is not None:
            return verdict, None
        await self._claimed.record_send()
        response, error = await self._call(self._operation.function, request)
        try:
            return self._classify(response if error is None else error), error
        except BaseException as interruption:
            await self._leave_interrupted(interruption)
            raise

    async def _read_request(self) -> tuple[Any, Verdict | None]:
        """Read the frozen request, and its outcome if that is recorded. Called before an attempt is counted."""
        operation, log = self._operation, self._claimed.log
        if log.doubted:  # an operator's decision did not reach the log: it has to be made again
            await self._claimed.doubt("it waits for an operator")
        try:
            known = None if log.outcome is None else Verdict.success(operation.policy.codec.decode(log.outcome))
            return operation.requests.decode(log.request), known
        except CorruptRecord as error:
            await self._claimed.release(error.code)
            raise

    async def _reconcile(self, request: Any) -> Verdict | None:
        """If a resend is not safe, ask the reconciler for the verdict. None: send the intent."""
        claimed, operation = self._claimed, self._operation
        if claimed.decide_next() == "send":
            return None
        reconciler = operation.reconciler
        if reconciler is None:
            why = "the provider may no longer keep its key" if claimed.rules.keyed else "the provider keeps no keys"
            await claimed.doubt(f"it went out before, and {why}")
        verdict, error = await self._call(reconciler, request)
        if error is not None:
            self._log_failed(error, "its outcome stays unknown: the reconciler is asked again", of="reconciler")
            try:
                await claimed.release_unknown(f"the reconciler raised {show(describe_error(error), 200)}", 1.0)
            except Retryable as unknown:
                raise unknown from error
        if not isinstance(verdict, Verdict):
            await claimed.release("the reconciler returned no verdict")
            raise ConfigurationError(
                f"the reconciler of {operation.provider.name} returned a {type(verdict).__name__}, which is not a "
                "Verdict"
            )
        verdict = _with_text_reason(verdict)
        if verdict.kind == "not_executed":  # proven absent: start over, under another key
            claimed.log.rounds += 1
            claimed.log.forget_sends()
            return None
        if verdict.kind == "pending":
            await claimed.release_unknown(f"the provider cannot tell yet: {verdict.why}", verdict.retry_after)
        if verdict.kind == "unknown":
            await claimed.doubt(f"the reconciler does not know either: {verdict.why}")
        return verdict

    async def _call(self, function: Any, request: Any) -> tuple[Any, Exception | None]:
        try:
            value = function(self._operation.make_intent(self._claimed.run, self._claimed.log, request))
            if self._operation.is_async:
                value = await value
            else:
                refuse_lazy(function, value)
            return value, None
        except Exception as error:
            return None, error
        except BaseException as error:
            await self._leave_interrupted(error)
            raise

    async def _leave_interrupted(self, error: BaseException) -> None:
        """Record that the outcome is unknown: the call was cancelled, or the process ends."""
        if isinstance(error, GeneratorExit):  # nothing may be awaited any more: the lease ends by itself
            return
        try:
            await self._claimed.release_unknown(type(error).__name__, 0.0)
        except (Retryable, InDoubt) as unknown:
            if self._recovering and is_own_exit(error):
                raise unknown from error

    def _classify(self, outcome: Any) -> Verdict:
        """Classify a response or an error. If anything goes wrong here, the effect may have happened all the same."""
        operation, sent_before = self._operation, self._claimed.log.send_count > 1
        classifier, source = operation.classifier, "the classifier"
        try:
            verdict: Any = classifier(outcome) if classifier is not None else None
            if verdict is None:
                source = "reading the response"
                verdict = classify(operation.provider, outcome, sent_before)
            elif not isinstance(verdict, Verdict):
                return Verdict.unknown(f"the classifier returned a {type(verdict).__name__}, which is not a Verdict")
            verdict = _with_text_reason(verdict)
        except Exception as error:
            if isinstance(outcome, BaseException) and error is not outcome:
                error.__context__ = outcome  # so that the log shows the traceback of both
            self._defect = error
            return Verdict.unknown(f"{source} raised {show(describe_error(error), 200)}")
        keyed = operation.rules.keyed
        about_this_send_only = verdict.kind == "not_executed" or (verdict.kind == "failure" and not keyed)
        if about_this_send_only and sent_before:
            return Verdict.unknown(f"{verdict.why}, which says nothing about the send before", verdict.retry_after)
        return verdict  # type: ignore[no-any-return]

    async def settle(self, verdict: Verdict, error: Exception | None) -> IntentResult:
        """Settle the intent as ``verdict`` says."""
        claimed = self._claimed
        if verdict.kind == "success" and self._recovering and claimed.log.transactional:
            return await self._leave_to_delivery(verdict.result)
        if verdict.kind == "success":
            await finish(claimed.run, claimed.client, verdict.result)
            return IntentResult(verdict.result)
        if verdict.kind == "failure":
            failure = PermanentFailure(f"intent {claimed.run.key} failed for good: {verdict.why}", "refused")
            then = "is not sent again: duplicates get the same error"
            self._log_failed(error or failure, then, last=True, refused=True)
            await claimed.fail(error, verdict.why)
            if error is not None:
                mark_final(error)
            return IntentResult(error=error or failure)
        try:
            if verdict.kind == "not_executed":
                await claimed.release_not_executed(verdict.why, verdict.retry_after)
            await claimed.release_unknown(verdict.why, verdict.retry_after)
        except (Retryable, InDoubt) as unknown:
            doubt = isinstance(unknown, InDoubt)
            self._log_failed(self._defect or error or unknown, _IN_DOUBT if doubt else _SENT_AGAIN, last=doubt)
            if isinstance(error, SyncAsyncMismatch):  # the defect to fix
                return IntentResult(error=error)
            unknown.__cause__ = self._defect or error
            return IntentResult(error=unknown)

    def _log_failed(
        self, error: Exception, then: str, *, last: bool = False, refused: bool = False, of: str = "operation"
    ) -> None:
        """See `log_failed_attempt`. Under a worker, a saga, a dispatcher or a task framework, which log the error that
        they get, this does not."""
        run, rules = self._claimed.run, self._claimed.rules
        if caller_logs_failures.get() or (run.parent is not None and run.parent.logs_failures):
            return
        log_failed_attempt(
            {"provider": self._operation.provider.name, of: rules.operation},
            error,
            then,
            last=last,
            refused=refused,
            scope=run.scope,
            key=run.key,
            attempt=self._claimed.log.send_count,
            private=run.runtime.privacy is not None,
        )

    async def _leave_to_delivery(self, result: Any) -> IntentResult:
        """Record the result of a transactional intent for the delivery that writes its rows."""
        run = self._claimed.run
        outcome = encode_result(run, result)
        if outcome is None:
            await self._claimed.release("it waits for its delivery")
        else:
            await self._claimed.record_outcome(outcome)
        waits = OutcomeUnknown(f"intent {run.key} happened, and waits for the delivery that writes its rows", 0.0)
        return IntentResult(error=waits)


def _with_text_reason(verdict: Verdict) -> Verdict:
    """Return ``verdict`` with a reason that is a text: users easily pass an exception."""
    why: Any = verdict.why
    if isinstance(why, str):
        return verdict
    text = describe_error(why) if isinstance(why, BaseException) else type(why).__name__
    return replace(verdict, why=show(text, 200))
