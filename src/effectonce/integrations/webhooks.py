"""Webhooks: verify the signature over the raw bytes first, then handle each event once.

    receive = stripe(secret)                                     # or github(secret)

    @app.post("/webhooks/stripe")
    async def webhook(request: Request) -> Response:
        event = receive(await request.body(), request.headers)   # `ForgedMessage`: answer 400, nothing was read
        await handle(event)                                      # under @once(store, scope="stripe-webhooks")

An event is a `Message` whose id and key are the provider's own id of it, which every redelivery keeps. A webhook is
answered with 2xx only when its handler has returned: whatever else is answered is delivered again.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from effectonce.errors import ConfigurationError, ForgedMessage, Undecodable
from effectonce.message import Message
from effectonce.values.durations import Duration, micros

Receive = Callable[[bytes, Mapping[str, str]], Message[Any]]


def stripe(*secrets: str, tolerance: Duration = "5m", now: Callable[[], float] = time.time) -> Receive:
    """Stripe's events. Several secrets while one is being rolled; ``tolerance`` is how old a signature may be.

    `ForgedMessage` where the signature is missing, wrong or too old; `Undecodable` where what it signs is no event.
    """
    keys = _secrets(secrets)
    span = micros(tolerance, "tolerance") / 1e6

    def receive(body: bytes, headers: Mapping[str, str]) -> Message[Any]:
        parts = [part.partition("=") for part in _header(headers, "Stripe-Signature").split(",")]
        stamps = [value for name, _, value in parts if name.strip() == "t"]
        given = [value for name, _, value in parts if name.strip() == "v1"]
        if len(stamps) != 1 or not (stamps[0].isascii() and stamps[0].isdecimal() and len(stamps[0]) < 16):
            raise ForgedMessage("the webhook has no Stripe-Signature that can be read")
        signed = stamps[0].encode() + b"." + body
        if not _matches([hmac.new(key, signed, hashlib.sha256).hexdigest() for key in keys], given):
            raise ForgedMessage("the webhook's signature is wrong; is this the endpoint's own signing secret?")
        if abs(now() - int(stamps[0])) > span:
            raise ForgedMessage("the webhook's signature is too old; is the clock of this machine right?")
        event = _decoded(body)
        try:
            _require_text(event["id"], event["type"])
            made = _time(event.get("created", int(stamps[0])))
            return Message(data=event, type=event["type"], id=event["id"], source="stripe", time=made)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Undecodable(f"the webhook is no event of Stripe's: {error!r}") from error

    return receive


def github(*secrets: str) -> Receive:
    """GitHub's deliveries, of content type application/json. A redelivery, by hand too, keeps its
    ``X-GitHub-Delivery``, which is the key.

    GitHub signs the body alone: whoever got hold of a signed one can send it under another delivery id. Where that
    matters, make the key of the body: ``once(key=keys.content_hash("event.data"))``.

    `ForgedMessage` where the signature is missing or wrong; `Undecodable` where what it signs is no delivery.
    """
    keys = _secrets(secrets)

    def receive(body: bytes, headers: Mapping[str, str]) -> Message[Any]:
        given = _header(headers, "X-Hub-Signature-256")
        expected = [f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}" for key in keys]
        if not _matches(expected, [given]):
            raise ForgedMessage("the webhook's signature is missing or wrong; is this the webhook's own secret?")
        delivery, kind = _header(headers, "X-GitHub-Delivery"), _header(headers, "X-GitHub-Event")
        if not delivery or not kind:
            raise Undecodable("the webhook names no X-GitHub-Delivery or X-GitHub-Event")
        return Message(data=_decoded(body), type=kind, id=delivery, source="github")

    return receive


def _secrets(secrets: tuple[str, ...]) -> list[bytes]:
    if not secrets or not all(isinstance(secret, str) and secret for secret in secrets):
        raise ConfigurationError("a webhook receiver needs the secret that the provider signs with")
    return [secret.encode() for secret in secrets]


def _header(headers: Mapping[str, str], name: str) -> str:
    """Of any framework's headers, or of a plain dict in whatever case."""
    found = headers.get(name)
    if found is None:
        found = next((value for each, value in headers.items() if each.lower() == name.lower()), "")
    return found


def _matches(expected: list[str], given: list[str]) -> bool:
    """Whether any is as expected; compared in constant time."""
    # A header may have been decoded from bytes that are no UTF-8.
    raw = [other.encode("utf-8", "surrogatepass") for other in given]
    return any(hmac.compare_digest(one.encode(), other) for one in expected for other in raw)


def _require_text(*values: Any) -> None:
    if not all(isinstance(value, str) and value for value in values):
        raise ValueError("its id and type must be text")


def _time(created: Any) -> datetime:
    """Of a snapshot event in seconds, of a thin one as text."""
    if isinstance(created, str):
        return datetime.fromisoformat(created).astimezone(UTC)
    return datetime.fromtimestamp(int(created), UTC)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Undecodable(f"the webhook's body is no JSON: {error}") from error
