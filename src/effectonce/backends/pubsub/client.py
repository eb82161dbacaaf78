"""A client of Pub/Sub, opened by address: its calls, and the translation of their errors."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from effectonce.backends.common.drivers import require_driver
from effectonce.backends.common.tls import TLSOptions, take_tls, tls_refusal_by_text
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, InvalidOption, show
from effectonce.values.urls import Address

GOOGLE_ENDPOINT: Final = "pubsub.googleapis.com:443"
#: Google's own variable: the address of an emulator, which speaks without TLS.
EMULATOR_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
#: The most ack ids in one call.
MAX_ACK_IDS: Final = 1000
#: How often an ack is sent that the service says to send again (only subscriptions with exactly-once delivery).
MAX_ACK_TRIES: Final = 4
ACK_RETRY_PAUSE_S: Final = 0.2
#: A connection that has been silent for this long is pinged, and given up if the ping has no answer in the time below.
PING_EVERY_MS: Final = 30_000
PING_TIMEOUT_MS: Final = 10_000
MAX_RECONNECT_PAUSE_MS: Final = 2_000

_PROJECT: Final = re.compile(r"[a-z][a-z0-9.:-]{4,}")
_OF_PUBLISHER: Final = frozenset(("create_topic", "get_topic", "publish"))


class PubSubTarget(Struct, frozen=True, kw_only=True):
    """A project, and where its Pub/Sub is."""

    project: str
    host: str  # with its port
    tls: TLSOptions | None  # None: an emulator
    credentials_file: str
    timeout: float

    def __str__(self) -> str:
        return f"pubsub://{self.project}" + ("" if self.host == GOOGLE_ENDPOINT else f" at {self.host}")

    def topic(self, name: str) -> str:
        return f"projects/{self.project}/topics/{name}"

    def subscription(self, name: str) -> str:
        return f"projects/{self.project}/subscriptions/{name}"


def parse_target(address: Address) -> PubSubTarget:
    """Read the target from ``pubsub://project?endpoint=…&credentials_file=…&timeout=…``."""
    require_driver("Pub/Sub", "pubsub", "google.pubsub_v1", "grpc")
    if address.user is not None or address.password is not None:
        raise InvalidOption(
            "pubsub:// takes no credentials in its URL; Google's client finds them itself: in the file that "
            "GOOGLE_APPLICATION_CREDENTIALS names, from `gcloud auth application-default login`, or the machine's role"
        )
    if not _PROJECT.fullmatch(address.netloc) or address.path not in ("", "/"):
        raise InvalidOption(f"pubsub:// needs the id of a project, as in pubsub://my-project; got {address}")
    host, is_plain = _parse_endpoint(address.take("endpoint", str, ""))
    tls = take_tls(address, default=not is_plain)
    if (tls is None) != is_plain:
        raise InvalidOption(f"tls of {address} says one thing and its endpoint the other; leave tls out")
    if tls is not None:
        if tls.verify != "yes":
            raise InvalidOption(f"gRPC checks every certificate; leave verify out of {address}, and name a ca_file")
        tls.make_context(str(address))  # a file that cannot be used is found now, not at the first call
    return PubSubTarget(
        project=address.netloc,
        host=host,
        tls=tls,
        credentials_file=address.take("credentials_file", str, ""),
        timeout=address.seconds("timeout", 10.0),
    )


def _parse_endpoint(endpoint: str) -> tuple[str, bool]:
    """Returns the host with its port, and whether it speaks without TLS."""
    if not endpoint:
        emulator = os.environ.get(EMULATOR_VARIABLE, "")
        return (emulator, True) if emulator else (GOOGLE_ENDPOINT, False)
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InvalidOption("option endpoint of pubsub:// must look like http://127.0.0.1:8085, without a user")
    is_plain = parts.scheme == "http"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or (80 if is_plain else 443)}", is_plain


class MissingPubSubResource(ConfigurationError):
    """The project has no topic or subscription of that name."""


class PubSubRefusal(ConfigurationError):
    """Pub/Sub does not accept the request."""


class PubSubClient:
    """Google's asynchronous client for one event loop, opened when first used. One connection carries all calls; it is
    opened again by itself."""

    def __init__(self, target: PubSubTarget) -> None:
        self.target = target
        self._channel: Any = None
        self._publisher: Any = None
        self._subscriber: Any = None
        self._opening = asyncio.Lock()

    async def call(self, method: str, request: Any, *, timeout: float | None = None) -> Any:
        """Make one call, without the client's own retries. Returns the reply, or raises one of our errors."""
        try:
            await self._open()
            service = self._publisher if method in _OF_PUBLISHER else self._subscriber
            return await getattr(service, method)(request, retry=None, timeout=timeout or self.target.timeout)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise BrokerUnavailable(f"{self.target}: the connection was closed during a call") from error
        except Exception as error:
            raise translate(error, self.target) from error

    async def pull(self, subscription: str, limit: int, wait: float) -> Sequence[Any]:
        """Receive up to ``limit`` messages; [] after ``wait`` seconds without one."""
        from google.api_core.exceptions import DeadlineExceeded
        from google.pubsub_v1.types import PullRequest, PullResponse

        request = PullRequest(subscription=subscription, max_messages=limit)
        try:
            reply = await self.call("pull", request, timeout=wait)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, DeadlineExceeded):
                return []
            raise
        received: Sequence[Any] = PullResponse.pb(reply).received_messages
        return received

    async def settle(self, method: str, subscription: str, ack_ids: Sequence[str], **parameters: Any) -> list[bool]:
        """Make ``acknowledge`` or ``modify_ack_deadline`` for ``ack_ids``. False for those that the service knows to be
        no longer ours. Only a subscription with exactly-once delivery tells that."""
        accepted: list[bool] = []
        for start in range(0, len(ack_ids), MAX_ACK_IDS):
            chunk = ack_ids[start : start + MAX_ACK_IDS]
            stale = await self._settle_chunk(method, subscription, chunk, parameters)
            accepted += [ack_id not in stale for ack_id in chunk]
        return accepted

    async def _settle_chunk(
        self, method: str, subscription: str, ack_ids: Sequence[str], parameters: Mapping[str, Any]
    ) -> set[str]:
        """Returns the ack ids that the service knows to be no longer ours."""
        stale: set[str] = set()
        remaining = list(ack_ids)
        for _ in range(MAX_ACK_TRIES):
            try:
                await self.call(method, {"subscription": subscription, "ack_ids": remaining, **parameters})
                return stale
            except (PubSubRefusal, BrokerUnavailable) as error:
                outcomes = ack_id_outcomes(error.__cause__)
                if not outcomes:
                    raise
                stale |= {ack_id for ack_id, is_final in outcomes.items() if is_final}
                remaining = [ack_id for ack_id, is_final in outcomes.items() if not is_final]
            if not remaining:
                return stale
            await asyncio.sleep(ACK_RETRY_PAUSE_S)
        raise BrokerUnavailable(f"{self.target} could not settle {len(remaining)} deliveries yet; try again")

    async def _open(self) -> None:
        async with self._opening:
            if self._channel is not None:
                return
            from google.pubsub_v1.services.publisher import PublisherAsyncClient
            from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
            from google.pubsub_v1.services.subscriber import SubscriberAsyncClient
            from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

            self._channel = channel = await self._connect()
            self._publisher = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))
            self._subscriber = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))

    async def _connect(self) -> Any:
        import grpc
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

        target, tls = self.target, self.target.tls
        options: list[tuple[str, int | str]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", PING_EVERY_MS),
            ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_PAUSE_MS),
        ]
        if tls is None:
            return grpc.aio.insecure_channel(target.host, options)
        if tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        credentials = await asyncio.to_thread(self._find_credentials)  # it may ask the machine's metadata server
        return SubscriberGrpcAsyncIOTransport.create_channel(
            target.host, credentials=credentials, ssl_credentials=_ssl_credentials(tls), options=options
        )

    def _find_credentials(self) -> Any:
        import google.auth
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

        google_auth: Any = google.auth  # its functions have no types
        scopes = SubscriberGrpcAsyncIOTransport.AUTH_SCOPES
        if self.target.credentials_file:
            return google_auth.load_credentials_from_file(self.target.credentials_file, scopes=scopes)[0]
        return google_auth.default(scopes=scopes)[0]

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _ssl_credentials(tls: TLSOptions) -> Any:
    import grpc

    def read(path: str) -> bytes | None:
        return Path(path).read_bytes() if path else None

    return grpc.ssl_channel_credentials(
        root_certificates=read(tls.ca_file),
        private_key=read(tls.key_file or tls.cert_file),
        certificate_chain=read(tls.cert_file),
    )


def ack_id_outcomes(error: BaseException | None) -> dict[str, bool]:
    """What a call that settles says of single ack ids: True where the failure is final. {} where it says nothing.

    Such an error names the ids that failed in its details; all others of the call are settled.
    """
    metadata = getattr(error, "metadata", None) or {}
    outcomes = {}
    for ack_id, reason in metadata.items():
        if reason.startswith(("PERMANENT_FAILURE", "TRANSIENT_FAILURE")):
            outcomes[ack_id] = reason.startswith("PERMANENT")
    return outcomes


def translate(error: Exception, target: PubSubTarget) -> Exception:
    """Return our error for an error of Google's client. Any other exception is a bug of ours, and returned as it is."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, EffectOnceError):
        return error
    detail = show(getattr(error, "message", error), 200)
    if isinstance(error, exceptions.NotFound):
        return MissingPubSubResource(
            f"{target} has no such topic or subscription ({detail}); create it, for example with "
            "connect_broker(…).declare(queue)"
        )
    if isinstance(error, exceptions.Forbidden | exceptions.Unauthorized):
        return ConfigurationError(
            f"{target} does not accept these credentials ({detail}); give their account the roles "
            "roles/pubsub.publisher and roles/pubsub.subscriber"
        )
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        return ConfigurationError(
            f"there are no usable credentials for {target} ({detail}); set GOOGLE_APPLICATION_CREDENTIALS, or run "
            "`gcloud auth application-default login`"
        )
    if isinstance(error, exceptions.ClientError) and not isinstance(error, _passing_client_errors()):
        return PubSubRefusal(f"{target} does not accept the request: {detail}")
    if isinstance(error, exceptions.GoogleAPICallError | GoogleAuthError | OSError):
        refusal = tls_refusal_by_text(detail.lower(), str(target))
        return refusal or BrokerUnavailable(f"{target} cannot be reached, or did not answer: {detail}")
    return error


def _passing_client_errors() -> tuple[type[Exception], ...]:
    """Those that Google's client counts among the caller's errors, and that another try may not meet."""
    from google.api_core import exceptions

    return (exceptions.Aborted, exceptions.Cancelled, exceptions.TooManyRequests)
