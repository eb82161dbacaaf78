"""Every error effectonce raises, on one page.

    EffectOnceError                    code                   what to do
    ├── Retryable(retry_after)                                do not ack; deliver again later
    │   ├── InProgress                 in-progress            another delivery is running it
    │   ├── NotExecuted                not-executed           the provider refused it before anything happened
    │   ├── OutcomeUnknown             outcome-unknown        sent, but not answered: it is sent again with its key
    │   ├── StoreUnavailable           store-unavailable      the store did not answer
    │   ├── TransactionConflict        transaction-conflict   the database rolled it back in favour of another
    │   └── BrokerUnavailable          broker-unavailable     the broker did not answer
    ├── InDoubt                        in-doubt               it may have happened or not: an operator resolves it
    ├── PayloadMismatch                payload-mismatch       one key, two payloads: fix the sender
    ├── PayloadTooLarge                payload-too-large      a body over its cap
    ├── MissingKey                     missing-key            no key to recognise a duplicate by
    │   └── MissingPrincipal           missing-principal      an HTTP request that names no caller
    ├── InvalidKey                     invalid-key            a key that cannot be stored
    │   └── KeyTooLong                 key-too-long
    ├── LeaseLost                      lease-lost             another delivery took over
    ├── ResultNotStored                result-not-stored      it is done, but its result was not kept
    ├── PermanentFailure               permanent-failure      it failed for good, and this is the replay
    │   ├── AttemptsExhausted          attempts-exhausted     every allowed attempt was used
    │   └── SagaFailed                 saga-failed            a step failed, and the steps before are compensated
    ├── CorruptRecord                  corrupt-record         a stored row cannot be read
    ├── NotInDoubt                     not-in-doubt           resolve of a record that is not in doubt
    ├── Undecodable                    undecodable            a body that is not a message: dead-letter it
    │   └── ForgedMessage              forged-message         its signature is missing or wrong
    ├── NotAwaited                     not-awaited            an async answer used without `await`
    └── ConfigurationError             configuration          fix the code or the settings, then restart
        ├── UnknownScheme              unknown-scheme
        ├── MissingDriver              missing-driver
        ├── InvalidOption              invalid-option
        ├── ScopeTaken                 scope-taken
        ├── SagaChanged                saga-changed           a saga in flight was started under another definition
        ├── Reentered                  reentered              a handler called itself with its own key
        ├── SyncAsyncMismatch          sync-async-mismatch    sync use of an async thing, or the reverse
        ├── NotInTransaction           not-in-transaction     the connection would commit each statement by itself
        ├── UnsafeStore                unsafe-store           the server's settings cannot keep the promise
        └── SchemaMissing              schema-missing         run the migration
            └── SchemaMismatch         schema-mismatch        the tables are of another version

Codes are stable: alert on them. A traceback ends with the page that explains its error (`help_url`). Each backend
translates the exceptions of its driver, once, in its connection; they stay reachable as ``__cause__``.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

__all__ = [
    "AttemptsExhausted",
    "BrokerUnavailable",
    "ConfigurationError",
    "CorruptRecord",
    "EffectOnceError",
    "ForgedMessage",
    "InDoubt",
    "InProgress",
    "InvalidKey",
    "InvalidOption",
    "KeyTooLong",
    "LeaseLost",
    "MissingDriver",
    "MissingKey",
    "MissingPrincipal",
    "NotAwaited",
    "NotExecuted",
    "NotInDoubt",
    "NotInTransaction",
    "OutcomeUnknown",
    "PayloadMismatch",
    "PayloadTooLarge",
    "PermanentFailure",
    "Reentered",
    "ResultNotStored",
    "Retryable",
    "SagaChanged",
    "SagaFailed",
    "SchemaMismatch",
    "SchemaMissing",
    "ScopeTaken",
    "StoreUnavailable",
    "SyncAsyncMismatch",
    "TransactionConflict",
    "Undecodable",
    "UnknownScheme",
    "UnsafeStore",
]


_URL: Final = re.compile(r"\b([a-z][a-z0-9+.-]*://)([^\s/?#'\"<>]*)([^\s'\"<>]*)", re.IGNORECASE)


def show(text: object, limit: int = 96) -> str:
    """``text`` as it may appear in a message: one line, no control characters, bounded.

    Keys come from outside. CR/LF would forge log lines and ANSI codes would repaint a terminal.
    """
    plain = str(text)
    if len(plain) > limit:
        plain = f"{plain[: limit - 1]}…"
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in plain)


def scrubbed(text: str) -> str:
    """``text`` without what may be secret in its URLs: user, password, query. HTTP clients put theirs into errors."""
    return _URL.sub(lambda url: f"{url[1]}{url[2].rpartition('@')[2]}{url[3].partition('?')[0]}", text)


class EffectOnceError(Exception):
    """The base of every error raised by effectonce. ``code`` is stable across releases."""

    code: ClassVar[str] = "effectonce"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"effectonce docs: {self.help_url}")  # the last line of a traceback; the message stays as it is

    @property
    def help_url(self) -> str:
        """Where the documentation explains this error, from its root on."""
        return f"reference/errors/#{self.code}"


class Retryable(EffectOnceError):
    """The same call may succeed after ``retry_after`` seconds. Do not ack it. Unless it says so, nothing was done."""

    code = "retryable"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class InProgress(Retryable):
    """Another delivery of this key holds the lease. Do not ack this one: the first may still die."""

    code = "in-progress"


class NotExecuted(Retryable):
    """The provider refused the request before anything could happen. Deliver it again later."""

    code = "not-executed"


class OutcomeUnknown(Retryable):
    """The request was sent, and its outcome is unknown. Deliver it again: while the provider keeps the key, the request
    is sent with the same key, or looked up; after that it is in doubt."""

    code = "outcome-unknown"


class StoreUnavailable(Retryable):
    """The store did not answer. The handler did not run, or its outcome could not be recorded."""

    code = "store-unavailable"


class TransactionConflict(Retryable):
    """A deadlock or a serialization failure: the database ended this transaction in favour of another. Roll it back,
    and run the whole of it again on a new one."""

    code = "transaction-conflict"


class BrokerUnavailable(Retryable):
    """The broker did not answer. What was sent may or may not have arrived: send it again with the same id."""

    code = "broker-unavailable"


class InDoubt(EffectOnceError):
    """An earlier attempt ended without saying whether its effect happened. An operator decides."""

    code = "in-doubt"


class PayloadMismatch(EffectOnceError):
    """The key was used before with another payload. The handler did not run."""

    code = "payload-mismatch"


class PayloadTooLarge(EffectOnceError):
    """The body is over its cap: a request's, up to which it is fingerprinted, or a message's. Nothing was done."""

    code = "payload-too-large"


class MissingKey(EffectOnceError):
    """The call carries no key, so a duplicate could not be told from a new operation."""

    code = "missing-key"


class MissingPrincipal(MissingKey):
    """The HTTP request names no caller, so its key could not be told from another caller's."""

    code = "missing-principal"


class InvalidKey(EffectOnceError):
    """The key (or the fingerprinted payload) has a value that no store can keep faithfully."""

    code = "invalid-key"


class KeyTooLong(InvalidKey):
    """The key is over the length cap."""

    code = "key-too-long"


class LeaseLost(EffectOnceError):
    """The handler ran, but another delivery had taken over: its outcome was not recorded."""

    code = "lease-lost"


class ResultNotStored(EffectOnceError):
    """The operation is done; its result could not be kept, so this duplicate has nothing to replay."""

    code = "result-not-stored"


class PermanentFailure(EffectOnceError):
    """The operation failed for good earlier; ``error`` names the exception it failed with."""

    code = "permanent-failure"

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class AttemptsExhausted(PermanentFailure):
    """Every allowed attempt was used without a recorded success."""

    code = "attempts-exhausted"


class SagaFailed(PermanentFailure):
    """``step`` of a saga failed, and the steps before it are compensated. Duplicates get the same error."""

    code = "saga-failed"

    def __init__(self, message: str, error: str = "", step: str = "") -> None:
        super().__init__(message, error)
        self.step = step
        self.args = (message, error, step)

    def __str__(self) -> str:
        return str(self.args[0])


class CorruptRecord(EffectOnceError):
    """A stored row cannot be read: written by a newer version, by hand, or under another secret."""

    code = "corrupt-record"


class NotInDoubt(EffectOnceError):
    """`resolve` was called for a record that is not in doubt. Nothing changed."""

    code = "not-in-doubt"


class Undecodable(EffectOnceError):
    """The body is not a message of this envelope. Delivering it again will not help: dead-letter it."""

    code = "undecodable"


class ForgedMessage(Undecodable):
    """The signature over the raw bytes is missing, wrong or of an unknown key. Nothing was decoded."""

    code = "forged-message"


class NotAwaited(EffectOnceError):
    """An async answer was tested without `await`; its truth value would always be true."""

    code = "not-awaited"


class ConfigurationError(EffectOnceError):
    """The code or the settings cannot work. Retrying will not help."""

    code = "configuration"


class UnknownScheme(ConfigurationError):
    """The URL's scheme names no store or broker."""

    code = "unknown-scheme"


class MissingDriver(ConfigurationError):
    """The driver library for this URL is not installed."""

    code = "missing-driver"


class InvalidOption(ConfigurationError):
    """An option of a URL or a call is unknown or has a bad value."""

    code = "invalid-option"


class ScopeTaken(ConfigurationError):
    """Two functions use one scope on one store: they would hide messages from each other."""

    code = "scope-taken"


class SagaChanged(ConfigurationError):
    """A saga in flight was started under another definition: other steps, another version, or a compensation that is
    gone now. It was left as it is."""

    code = "saga-changed"


class Reentered(ConfigurationError):
    """A handler called a guarded function with the key that it is itself running under."""

    code = "reentered"


class SyncAsyncMismatch(ConfigurationError):
    """Sync use of an async thing, or a blocking call inside a running event loop."""

    code = "sync-async-mismatch"


class NotInTransaction(ConfigurationError):
    """The connection has no transaction open: the record would be committed without the effect."""

    code = "not-in-transaction"


class UnsafeStore(ConfigurationError):
    """The server is set up so that it may lose records it has confirmed."""

    code = "unsafe-store"


class SchemaMissing(ConfigurationError):
    """The tables do not exist yet."""

    code = "schema-missing"


class SchemaMismatch(SchemaMissing):
    """The tables exist in a version that this release does not read."""

    code = "schema-mismatch"
