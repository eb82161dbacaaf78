"""A store that stays in its place during trials: that of intents which the handler completes in its own transaction.

Their records must be in the database of that transaction, so one in memory cannot stand in for it. Each trial begins
with new records, as it does in memory. Time does not pass in a database: the trial ends the leases that would be over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effectonce.contracts import Backend, Dialect, Joinable, Port
from effectonce.core.run_sync import run_sync
from effectonce.errors import ConfigurationError
from effectonce.record import Answer, Claim, Operation, Renewal, Reply, Settlement

from .fault_points import FaultInjectingPort, FaultInjector
from .wrapper import Wrapper


class KeptStoreBackend(Wrapper):
    """The backend of a store of the handler's, whose operations are steps of the current injector."""

    def __init__(self, inner: Backend, *, survives_kills: bool) -> None:
        super().__init__(inner)
        self.survives_kills = survives_kills
        self.injector = FaultInjector()
        self._identities: set[tuple[str, str]] = set()
        self._lapses: dict[bytes, Settlement] = {}  # by the owner of a claim: how it ends when its lease is over

    def sync_port(self) -> Any:
        return _KeptStorePort(self, self._inner.sync_port())

    def async_port(self) -> Any:
        return _KeptStorePort(self, self._inner.async_port())

    def completion(self, op: Settlement) -> tuple[Dialect, Sequence[tuple[str, Sequence[Any]]]]:
        if not isinstance(self._inner, Joinable):
            raise ConfigurationError(
                f"{self._inner!r} is not an SQL database: your transaction can complete nothing there"
            )
        return self._inner.completion(op)

    def note_operation(self, op: Operation, reply: Reply) -> None:
        """Remember what ``op`` has claimed or settled."""
        self._identities.add((op.scope, op.key))
        if isinstance(op, Claim) and isinstance(reply, Answer) and reply.kind == "claimed":
            state: Any = "in_doubt" if op.doubt_on_lapse else "free"
            self._lapses[op.owner] = Settlement(op.scope, op.key, op.owner, reply.token, state, op.retention_us)
        elif isinstance(op, Settlement):
            self._lapses.pop(op.owner, None)

    def end_leases(self) -> None:
        """End every claim that was not settled, as the end of its lease does. One that the handler's transaction
        completed stays done."""
        lapses = list(self._lapses.values())
        self._lapses.clear()
        self._ask(lambda port: [run_sync(port.run([lapse])) for lapse in lapses])

    def forget_records(self) -> None:
        """Make every record of the trial as good as absent: the next trial is of new operations."""
        retention = 60_000_000
        self._ask(lambda port: [run_sync(port.forget(*identity, retention)) for identity in self._identities])

    def _ask(self, work: Any) -> None:
        port: Port = self._inner.sync_port()
        try:
            work(port)
        finally:
            run_sync(port.close())


class _KeptStorePort(FaultInjectingPort):
    async def _run_one(self, op: Any) -> Reply:
        if isinstance(op, Renewal):  # by the heartbeat, on its own thread
            (reply,) = await self._inner.run([op])
            return reply  # type: ignore[no-any-return]
        return await super()._run_one(op)
