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
    ├── NotAwaited                     not-awaited            a call on an async connection without `await`
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

_UNCOUNTED_DUPLICATE_DELAY_S: Final = 1.0
_MAX_DOUBLINGS: Final = 30  # of the delay of a duplicate; its lease has ended long before

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


def scrub_urls(text: str) -> str:
    """``text`` without the parts of its URLs that may be secret: user, password, query. HTTP clients put URLs into
    their errors."""
    return _URL.sub(lambda url: f"{url[1]}{url[2].rpartition('@')[2]}{url[3].partition('?')[0]}", text)


class EffectOnceError(Exception):
    """The base of every error raised by effectonce. ``code`` is stable across releases."""

    code: ClassVar[str] = "effectonce"

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        """``code``: the stable code of the class. Without it, the class has the code of its base."""
        if code is not None:
            cls.code = code

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(f"effectonce docs: {self.help_url}")  # the last line of a traceback; the message stays as it is

    @property
    def help_url(self) -> str:
        """The page that explains this error, relative to the root of the documentation."""
        return f"reference/errors/#{self.code}"


class Retryable(EffectOnceError, code="retryable"):
    """The same call may succeed after ``retry_after`` seconds. Do not ack it. Unless it says so, nothing was done."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class InProgress(Retryable, code="in-progress"):
    """Another delivery of this key holds the lease. Do not ack this one: the first may still die.

    ``retry_after`` is short, since the first may end soon. `delay_after` grows with the attempts of this delivery, up
    to ``lease_left``: the seconds until the lease ends, unless it is renewed."""

    def __init__(self, message: str, retry_after: float = 1.0, lease_left: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.lease_left = lease_left

    def delay_after(self, attempt: int | None) -> float:
        """The seconds to wait after attempt number ``attempt`` of this delivery met the first one: ``retry_after``,
        doubled with each further attempt, at most ``lease_left``. None: nothing counts them; then it is a second."""
        if self.lease_left is None:
            return self.retry_after
        if attempt is None:
            return min(_UNCOUNTED_DUPLICATE_DELAY_S, self.lease_left)
        return min(self.retry_after * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS), self.lease_left)


class NotExecuted(Retryable, code="not-executed"):
    """The provider refused the request before anything could happen. Deliver it again later."""


class OutcomeUnknown(Retryable, code="outcome-unknown"):
    """The request was sent, and its outcome is unknown. Deliver it again: while the provider keeps the key, the request
    is sent with the same key, or looked up; after that it is in doubt."""


class StoreUnavailable(Retryable, code="store-unavailable"):
    """The store did not answer. The handler did not run, or its outcome could not be recorded."""


class TransactionConflict(Retryable, code="transaction-conflict"):
    """A deadlock or a serialization failure: the database ended this transaction in favour of another. Roll it back,
    and run the whole of it again on a new one."""


class BrokerUnavailable(Retryable, code="broker-unavailable"):
    """The broker did not answer. What was sent may or may not have arrived: send it again with the same id."""


class InDoubt(EffectOnceError, code="in-doubt"):
    """An earlier attempt ended without saying whether its effect happened. An operator decides."""


class PayloadMismatch(EffectOnceError, code="payload-mismatch"):
    """The key was used before with another payload. The handler did not run."""


class PayloadTooLarge(EffectOnceError, code="payload-too-large"):
    """The body is over its cap: a request's, up to which it is fingerprinted, or a message's. Nothing was done."""


class MissingKey(EffectOnceError, code="missing-key"):
    """The call carries no key, so a duplicate could not be distinguished from a new operation."""


class MissingPrincipal(MissingKey, code="missing-principal"):
    """The HTTP request names no caller, so its key could not be distinguished from another caller's."""


class InvalidKey(EffectOnceError, code="invalid-key"):
    """The key (or the fingerprinted payload) has a value that no store can keep faithfully."""


class KeyTooLong(InvalidKey, code="key-too-long"):
    """The key is over the length cap."""


class LeaseLost(EffectOnceError, code="lease-lost"):
    """The handler ran, but another delivery had taken over: its outcome was not recorded."""


class ResultNotStored(EffectOnceError, code="result-not-stored"):
    """The operation is done; its result could not be kept, so this duplicate has nothing to replay."""


class PermanentFailure(EffectOnceError, code="permanent-failure"):
    """The operation failed for good earlier; ``error`` names the exception it failed with."""

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class AttemptsExhausted(PermanentFailure, code="attempts-exhausted"):
    """Every allowed attempt was used without a recorded success."""


class SagaFailed(PermanentFailure, code="saga-failed"):
    """``step`` of a saga failed, and the steps before it are compensated. Duplicates get the same error."""

    def __init__(self, message: str, error: str = "", step: str = "") -> None:
        super().__init__(message, error)
        self.step = step
        self.args = (message, error, step)

    def __str__(self) -> str:
        return str(self.args[0])


class CorruptRecord(EffectOnceError, code="corrupt-record"):
    """A stored row cannot be read: written by a newer version, by hand, or under another secret."""


class NotInDoubt(EffectOnceError, code="not-in-doubt"):
    """`resolve` was called for a record that is not in doubt. Nothing changed."""


class Undecodable(EffectOnceError, code="undecodable"):
    """The body is not a message of this envelope. Delivering it again will not help: dead-letter it."""


class ForgedMessage(Undecodable, code="forged-message"):
    """The signature over the raw bytes is missing, wrong or of an unknown key. Nothing was decoded."""


class NotAwaited(EffectOnceError, code="not-awaited"):
    """A call on an async connection was not awaited. Its answer was tested, which would always be true; or a handler of
    effectonce's own transaction returned without it, and to commit would lose what the call was to write."""


class ConfigurationError(EffectOnceError, code="configuration"):
    """The code or the settings cannot work. Retrying will not help."""


class UnknownScheme(ConfigurationError, code="unknown-scheme"):
    """The URL's scheme names no store or broker."""


class MissingDriver(ConfigurationError, code="missing-driver"):
    """The driver library for this URL is not installed."""


class InvalidOption(ConfigurationError, code="invalid-option"):
    """An option of a URL or a call is unknown or has a bad value."""


class ScopeTaken(ConfigurationError, code="scope-taken"):
    """Two functions use one scope on one store: they would hide messages from each other."""


class SagaChanged(ConfigurationError, code="saga-changed"):
    """A saga in flight was started under another definition: other steps, another version, or a compensation that is
    gone now. It was left as it is."""


class Reentered(ConfigurationError, code="reentered"):
    """A handler called a guarded function with the key that it is itself running under."""


class SyncAsyncMismatch(ConfigurationError, code="sync-async-mismatch"):
    """Sync use of an async thing, or a blocking call inside a running event loop."""


class NotInTransaction(ConfigurationError, code="not-in-transaction"):
    """The connection has no transaction open: the record would be committed without the effect."""


class UnsafeStore(ConfigurationError, code="unsafe-store"):
    """The server is set up so that it may lose records it has confirmed."""


class SchemaMissing(ConfigurationError, code="schema-missing"):
    """The tables do not exist yet."""


class SchemaMismatch(SchemaMissing, code="schema-mismatch"):
    """The tables exist in a version that this release does not read."""


#: The names of all errors. They are public: `effectonce` has them, too.
ERROR_NAMES: Final = sorted(name for name, value in list(globals().items()) if isinstance(value, type))
