"""The response of one claimed request: recorded while it is sent, and stored before its last bytes leave.

A process that dies before that leaves a claim that lapses: the client has not seen the end of a response, and its retry
runs again or is in doubt, as the route says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

from effectonce.core.guarded_call.finish import abort, finish, settle_unfinished
from effectonce.core.guarded_call.run import StoreRun
from effectonce.core.interrupts import raise_interrupt
from effectonce.core.store_clients import StoreClient
from effectonce.errors import EffectOnceError, StoreUnavailable, show

from . import protocol
from .problems import lost_attempt
from .profiles import Profile
from .protocol import Headers, Response
from .routes import RoutePlan

log = logging.getLogger("effectonce")


class IncompleteResponse(Exception):
    """The handler ended without having given a whole response."""


class ErrorResponse(Exception):
    """The handler answered with a status that stands for a failure."""


class ResponseRecording:
    """Records the response of one claimed request, and settles its claim.

    An adapter calls `start` with the status and headers, `add` with each chunk of the body, and `settle` at the end; or
    `fail` if there is no whole response. It must not send what `add` holds back before `settle` has returned: a client
    that has seen the end of a response takes it for final, and its retry has to get the same one. One adapter calls it,
    in one task or thread at a time.
    """

    def __init__(self, plan: RoutePlan, run: StoreRun, client: StoreClient, docs: str, profile: Profile) -> None:
        self.run = run
        self.client = client
        self.settled = False
        self.too_long = False  # over ``max_response``: it is sent, and not stored
        self.cause: BaseException | None = None  # what the framework has made this response of, where that is known
        self.echoed: Headers = []  # headers of the request that its answer repeats
        self._profile = profile
        self._route = plan.route
        self._plan = plan
        self._docs = docs
        self._status = 0
        self._headers: Headers = []
        self._chunks: list[bytes] = []
        self._size = 0
        self._expected_size: int | None = None

    @property
    def added_headers(self) -> Headers:
        """What the first response gets beside its own headers: how long its key is kept."""
        kept_for = protocol.retention_headers(self._plan.policy.retention_us) if self.run.protected else []
        return kept_for + self.echoed

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Record the status and the headers of the response."""
        headers = list(headers)
        self._status = status
        self._headers = protocol.headers_to_store(headers, self._plan.stored_headers)
        length = next((value for name, value in headers if name.lower() == "content-length"), "")
        if not protocol.has_body(status):  # the response ends with its headers
            self._expected_size = 0
        elif length.isdecimal() and length.isascii():
            self._expected_size = int(length)

    def add(self, chunk: bytes) -> bool:
        """Record ``chunk``. Returns whether it may be sent at once: a chunk that a client could take for the last one
        has to wait for `settle`."""
        self._size += len(chunk)
        if self._size > self._route.max_response:
            self.too_long = True
            self._chunks.clear()
        elif chunk:
            self._chunks.append(chunk)
        return self._expected_size is None or self._size < self._expected_size

    async def settle(self, *, cut_off: bool = False) -> EffectOnceError | None:
        """Settle the request by its response, which has ended.

        A response that is shorter than its Content-Length broke off, and is settled as by `fail`. The same if it may be
        ``cut_off``, since its handler learned that the client has left, and no Content-Length says that it is whole.

        Returns an error if the response could not be stored; it must not be sent then. The claim stands until its lease
        ends, and then the route's ``on_lapse`` decides.
        """
        if self._status == 0:
            await self.fail(IncompleteResponse("the response has no status"))
            return None
        self.settled = True
        on_error = self._route.on_error
        if self._status in self._route.transient:
            await self._settle_unfinished("free")
        elif self._status >= 500 and on_error != "replay":
            await self._settle_unfinished("in_doubt" if on_error == "doubt" else "free")
        elif self._size < (self._expected_size or 0):
            await self.fail(
                IncompleteResponse(f"the body has {self._size} bytes, and its Content-Length is {self._expected_size}")
            )
        elif cut_off and self._expected_size is None:
            await self.fail(IncompleteResponse("the response ended after its client had left"))
        else:
            body = None if self.too_long else b"".join(self._chunks)
            if body is None or self._profile.keeps(body):
                return await self._record(Response(self._status, self._headers, body))
            await self._settle_unfinished("free")
        return None

    async def _settle_unfinished(self, state: Literal["free", "in_doubt"]) -> None:
        why = f"status {self._status}"
        await settle_unfinished(self.run, self.client, state, why, error=self.cause or ErrorResponse(why))

    async def settle_and_end(self, body: bytes) -> EffectOnceError | None:
        """Add ``body``, the whole one, settle the request, and end its run. Returns what `settle` does."""
        self.add(body)
        try:
            return await self.settle()
        finally:
            self.run.end()

    async def fail(self, error: BaseException) -> None:
        """Settle a request whose handler ended without a whole response, as ``on_error`` says. Never raises an
        `Exception`."""
        self.settled = True
        if self._route.on_error != "replay" or isinstance(error, GeneratorExit):
            await abort(self.run, self.client, error)
            return
        unrecorded = await self._record(lost_attempt(self._docs))
        if unrecorded is not None:
            log.warning("scope %s: a failed attempt was not recorded: %s", show(self.run.scope), unrecorded)

    async def fail_and_end(self, error: BaseException) -> None:
        """`fail`, unless the request is settled already, and end its run."""
        try:
            if not self.settled:
                await self.fail(error)
        finally:
            self.run.end()

    async def _record(self, response: Response) -> EffectOnceError | None:
        try:
            await finish(self.run, self.client, self._profile.stamp(response))
        except EffectOnceError as error:
            return error
        except Exception as error:
            raise_interrupt(error)
            log.exception("scope %s: the completion failed", show(self.run.scope))
            return StoreUnavailable(f"the store failed: {type(error).__name__}")
        return None
