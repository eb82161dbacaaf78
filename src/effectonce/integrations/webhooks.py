"""Webhooks: verify the signature over the raw bytes first, then handle each event once.

    receive = stripe(secret)                                     # or github(secret), or standard(secret)

    @app.post("/webhooks/stripe")
    async def webhook(request: Request) -> Response:
        event = receive(await request.body(), request.headers)   # `ForgedMessage`: answer 400, nothing was read
        await handle(event)                                      # under @once(store, scope="stripe-webhooks")

An event is a `Message` whose id and key are the provider's own id of it, which every redelivery keeps. Answer a webhook
with 2xx only when its handler has returned: after any other answer it is delivered again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from effectonce.errors import ConfigurationError, ForgedMessage, Undecodable
from effectonce.message import Message
from effectonce.values.durations import Duration, micros

_TIMESTAMP: Final = re.compile(r"\d{1,15}", re.ASCII)

Receive = Callable[[bytes, Mapping[str, str]], Message[Any]]


def stripe(*secrets: str, tolerance: Duration = "5m", now: Callable[[], float] = time.time) -> Receive:
    """Receive Stripe's events. Give several secrets while one is being rolled; ``tolerance`` is how old a signature may
    be.

    Raises `ForgedMessage` where the signature is missing, wrong or too old; `Undecodable` where the signed body is not
    an event.
    """
    keys = _encode_secrets(secrets)
    check_age = _age_check(tolerance, now)

    def receive(body: bytes, headers: Mapping[str, str]) -> Message[Any]:
        fields = [field.partition("=") for field in _find_header(headers, "Stripe-Signature").split(",")]
        timestamps = [value for name, _, value in fields if name.strip() == "t"]
        signatures = [value for name, _, value in fields if name.strip() == "v1"]
        if len(timestamps) != 1 or not _TIMESTAMP.fullmatch(timestamps[0]):
            raise ForgedMessage("the webhook has no Stripe-Signature that can be read")
        signed_at = int(timestamps[0])
        if not any(_is_signed(keys, timestamps[0].encode() + b"." + body, value) for value in signatures):
            raise ForgedMessage("the webhook's signature is wrong; is this the endpoint's own signing secret?")
        check_age(signed_at)
        event = _decode_json(body)
        try:
            id, kind, created = event["id"], event["type"], _read_time(event.get("created", signed_at))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Undecodable(f"the webhook is not an event of Stripe: {error!r}") from error
        return _make_message(event, kind, id, "stripe", created)

    return receive


def github(*secrets: str) -> Receive:
    """Receive GitHub's deliveries, of content type application/json. A redelivery, by hand too, keeps its
    ``X-GitHub-Delivery``, which is the key.

    GitHub signs the body alone: an attacker with a signed one can send it under another delivery id. Where that
    matters, make the key of the body: ``once(key=keys.content_hash("event.data"))``.

    Raises `ForgedMessage` where the signature is missing or wrong; `Undecodable` where the signed body is not a
    delivery.
    """
    keys = _encode_secrets(secrets)

    def receive(body: bytes, headers: Mapping[str, str]) -> Message[Any]:
        signature = _find_header(headers, "X-Hub-Signature-256")
        if not signature.startswith("sha256=") or not _is_signed(keys, body, signature.removeprefix("sha256=")):
            raise ForgedMessage("the webhook's signature is missing or wrong; is this the webhook's own secret?")
        delivery, kind = _find_header(headers, "X-GitHub-Delivery"), _find_header(headers, "X-GitHub-Event")
        return _make_message(_decode_json(body), kind, delivery, "github", None)

    return receive


def standard(*secrets: str, tolerance: Duration = "5m", now: Callable[[], float] = time.time) -> Receive:
    """Receive events of any sender that follows Standard Webhooks 1.0.0 with a symmetric secret (``whsec_…``). The key
    is ``webhook-id``, which every redelivery keeps.

    Give several secrets while one is being rolled; ``tolerance`` is how old a signature may be. The message's data is
    the whole payload, its type the payload's ``type``, if it has one, and its time the payload's ``timestamp``, or when
    it was sent.

    Raises `ForgedMessage` where the signature is missing, wrong or too old; `Undecodable` where the signed body is not
    JSON.
    """
    keys = [_decode_standard_secret(secret) for secret in _encode_secrets(secrets)]
    check_age = _age_check(tolerance, now)

    def receive(body: bytes, headers: Mapping[str, str]) -> Message[Any]:
        id, sent_at = _find_header(headers, "webhook-id"), _find_header(headers, "webhook-timestamp")
        if not id or not _TIMESTAMP.fullmatch(sent_at):
            raise ForgedMessage("the webhook has no webhook-id, or no webhook-timestamp that can be read")
        versions = [text.partition(",") for text in _find_header(headers, "webhook-signature").split()]
        signatures = [_decode_base64(signature) for version, _, signature in versions if version == "v1"]
        signed = b".".join((id.encode("utf-8", "surrogatepass"), sent_at.encode(), body))
        expected = [hmac.digest(key, signed, "sha256") for key in keys]
        if not any(hmac.compare_digest(digest, signature) for digest in expected for signature in signatures):
            raise ForgedMessage("the webhook's signature is missing or wrong; is this the endpoint's own secret?")
        check_age(int(sent_at))
        event = _decode_json(body)
        payload = event if isinstance(event, dict) else {}
        kind, occurred_at = payload.get("type"), payload.get("timestamp")
        try:
            created = _read_time(occurred_at if isinstance(occurred_at, str) else int(sent_at))
        except (ValueError, OverflowError):  # the standard recommends the form of a payload; it does not demand it
            created = _read_time(int(sent_at))
        type = kind if isinstance(kind, str) else ""
        return Message(data=event, type=type, id=id, source="standard-webhooks", time=created)

    return receive


def _age_check(tolerance: Duration, now: Callable[[], float]) -> Callable[[int], None]:
    """Make a function that raises `ForgedMessage` unless the time of the signature is within ``tolerance`` of now."""
    tolerance_s = micros(tolerance, "tolerance") / 1e6

    def check(signed_at: int) -> None:
        if abs(now() - signed_at) > tolerance_s:
            raise ForgedMessage("the webhook's signature is too old; is the clock of this machine right?")

    return check


def _decode_standard_secret(secret: bytes) -> bytes:
    """The key that a secret of Standard Webhooks stands for: base64, after ``whsec_``."""
    key = _decode_base64(secret.removeprefix(b"whsec_").decode())
    if not key:
        raise ConfigurationError(
            "a secret of Standard Webhooks is base64 after 'whsec_', as the sender shows it; public keys ('whpk_') are "
            "not supported: choose a symmetric secret at the sender"
        )
    return key


def _decode_base64(text: str) -> bytes:
    """Decode base64, padded or not; b"" where it is none."""
    try:
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _encode_secrets(secrets: tuple[str, ...]) -> list[bytes]:
    if not secrets or not all(isinstance(secret, str) and secret for secret in secrets):
        raise ConfigurationError("a webhook receiver needs the secret that the provider signs with")
    return [secret.encode() for secret in secrets]


def _find_header(headers: Mapping[str, str], name: str) -> str:
    """Return a header, from any framework's headers or a plain dict in any case; "" if it is missing."""
    value = headers.get(name)
    if value is None:
        value = next((value for other, value in headers.items() if other.lower() == name.lower()), "")
    return value


def _is_signed(keys: list[bytes], signed: bytes, signature: str) -> bool:
    """Whether ``signature`` is that of any of ``keys``, compared in constant time."""
    raw = signature.encode("utf-8", "surrogatepass")  # a header may have been decoded from bytes that are not UTF-8
    return any(hmac.compare_digest(hmac.new(key, signed, hashlib.sha256).hexdigest().encode(), raw) for key in keys)


def _make_message(data: Any, kind: Any, id: Any, source: str, created: datetime | None) -> Message[Any]:
    if not (isinstance(id, str) and id and isinstance(kind, str) and kind):
        raise Undecodable(f"the webhook has no {source} id or type")
    return Message(data=data, type=kind, id=id, source=source, time=created)


def _read_time(created: Any) -> datetime:
    """A snapshot event has its time in seconds, a thin one as text."""
    if isinstance(created, str):
        return datetime.fromisoformat(created).astimezone(UTC)
    return datetime.fromtimestamp(int(created), UTC)


def _decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last: it is nested too deeply
        raise Undecodable(f"the webhook's body is not JSON: {error}") from error
