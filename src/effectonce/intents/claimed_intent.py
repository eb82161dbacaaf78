"""`ClaimedIntent`: an intent that this process has claimed. It commits the intent's log, and settles it."""

from __future__ import annotations

from typing import Literal, NoReturn

from effectonce.core.claim_notes import read_note, seal_note, write_note
from effectonce.core.guarded_call.finish import abort, settle_unfinished
from effectonce.core.guarded_call.run import StoreRun
from effectonce.core.store_clients import StoreClient
from effectonce.errors import EffectOnceError, InDoubt, LeaseLost, NotExecuted, OutcomeUnknown, scrub_urls, show

from .logged_intent import decode_log, encode_log
from .resend_rules import ResendRules


class ProviderRefusal(Exception):
    """The stored error of a failed intent whose operation raised no exception, or none that may be stored."""


class ClaimedIntent:
    """A claimed intent and its log. Nothing is sent before the log says so, and nothing is settled without its outcome.

    ``log`` is this process's copy, which only the claim's holder writes. What a method changes in it counts when
    `write_note` or the settlement is committed; a crash before that leaves the log as it was.

    ``has_reconciler``: whether the effect can be looked up at the provider. ``claimed_after``: the time on this
    process's monotonic clock before it asked for the claim.
    """

    def __init__(
        self, run: StoreRun, client: StoreClient, rules: ResendRules, has_reconciler: bool, claimed_after: float
    ) -> None:
        self.run = run
        self.client = client
        self.rules = rules
        self._has_reconciler = has_reconciler
        self._claimed_after = claimed_after
        self.log = decode_log(read_note(run))
        if self.log.generation != run.generation:  # an operator's retry: the counts start over
            self.log.generation = run.generation
            self.log.forget_sends()

    def decide_next(self) -> Literal["send", "reconcile"]:
        """Decide by `ResendRules.decide_next`, for the store's time as this process estimates it.

        The estimate is the time of the claim plus the time since this process asked for it. It is rather too late than
        too early, so that no resend goes out after the provider has dropped the key.
        """
        run = self.run
        elapsed = max(0, round((run.runtime.monotonic() - self._claimed_after) * 1e6))
        return self.rules.decide_next(self.log, run.token + elapsed)

    async def record_send(self) -> None:
        """Commit that the request goes out now. Raises `InDoubt` if a resend has become unsafe meanwhile."""
        run, log = self.run, self.log
        if run.parent is not None and run.parent.lease_lost:
            await self.release("lease-lost")
            raise LeaseLost(f"{self} was not sent: its caller has lost its lease, or has timed out")
        log.send_count += 1
        log.first_sent_at = log.first_sent_at or run.token
        await write_note(run, self.client, encode_log(log))
        if run.lease_lost:
            raise LeaseLost(f"{self}: the lease ended before it was sent; another process resumes it")
        if log.send_count > 1 and self.rules.keyed and self.decide_next() != "send":
            await self.doubt("the provider may no longer keep its key")

    async def doubt(self, why: str) -> NoReturn:
        """Put the intent in doubt: an operator decides. If that cannot be recorded, no operator would see it, so this
        raises `OutcomeUnknown`, and the next delivery records it."""
        self.log.doubted = self.log.transactional
        if not await self._settle_with_log("in_doubt", why):
            raise OutcomeUnknown(f"{self}: {why}, and that could not be recorded; deliver it again", 1.0)
        raise InDoubt(
            f"{self} is in doubt: {why}; look it up at the provider, then decide: "
            f"effectonce intents resolve MODULE:INTENTS {self.run.key}"
        )

    async def release_unknown(self, why: str, retry_after: float) -> NoReturn:
        """Release an intent whose outcome is unknown: with a key it may be sent again, with a reconciler it can be
        looked up. With neither, put it in doubt."""
        if not self.rules.keyed and not self.rules.may_repeat and not self._has_reconciler:
            await self.doubt(why)
        await self.release(why)
        raise OutcomeUnknown(
            f"{self} was sent, and its outcome is unknown: {why}; deliver it again, it goes out with the same key or "
            "is looked up",
            retry_after,
        )

    async def release_not_executed(self, why: str, retry_after: float) -> NoReturn:
        """Release an intent that had no effect, so that the next send counts as the first."""
        self.log.forget_sends()
        await self._settle_with_log("free", why)
        raise NotExecuted(f"{self} was not executed: {why}; deliver it again later", retry_after)

    async def release(self, why: str) -> None:
        """Release the intent, with its log as it was last committed."""
        await settle_unfinished(self.run, self.client, "free", why)

    async def fail(self, error: Exception | None, why: str) -> None:
        """Settle the intent as failed for good. Every duplicate gets the stored error, so it must not hold the secrets
        of a URL."""
        if error is None or isinstance(error, EffectOnceError) or _is_unfit_to_store(error):
            error = ProviderRefusal(why)
        await abort(self.run, self.client, error)

    async def record_outcome(self, outcome: bytes) -> bool:
        """Record the result of a transactional intent, for the delivery that will complete it with its rows. Returns
        whether it was recorded."""
        self.log.outcome, self.log.doubted = outcome, False
        return await self._settle_with_log("free", "it waits for its delivery")

    async def record_retry(self) -> bool:
        """Record that an operator lets a transactional intent start over. Returns whether it was recorded."""
        self.log.doubted = False
        return await self._settle_with_log("free", "an operator's retry")

    async def _settle_with_log(self, state: Literal["free", "in_doubt"], why: str) -> bool:
        return await settle_unfinished(self.run, self.client, state, why, seal_note(self.run, encode_log(self.log)))

    def __str__(self) -> str:
        return f"intent {self.run.key} ({show(self.run.scope)}, key {show(self.log.key)!r})"


def _is_unfit_to_store(error: Exception) -> bool:
    """Whether the text of ``error`` holds a secret, or its own __str__ raises."""
    try:
        text = str(error)
        return scrub_urls(text) != text
    except Exception:
        return True
