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
    ├── PayloadTooLarge                payload-too-large      a body over its limit
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
    ├── UnknownType                    unknown-type           no handler of the queue takes this type of message
    ├── Poison                         poison                 a message that probably crashes its processes
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

Codes are stable: alert on them. A traceback ends with the command that explains its error. Each backend
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
        # The last line of a traceback; the message stays as it is.
        self.add_note(f"for what it means and what to do: effectonce explain {self.code}")


class Retryable(EffectOnceError, code="retryable"):
    """The same call may succeed after ``retry_after`` seconds. Do not ack it. Unless it says so, nothing was done."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class InProgress(Retryable, code="in-progress"):
    """Another delivery of this key is running, and holds the lease.

    What to do: deliver this one again later, and do not ack it. The first one may still die. ``retry_after`` is short,
    because most first deliveries end soon. `delay_after` grows with the attempts of this delivery, up to
    ``lease_left``: the seconds until the lease ends, unless it is renewed.
    """

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
    """The provider rejected the request before anything happened: it was busy, or limited your rate.

    What to do: deliver it again later. Nothing was done.
    """


class OutcomeUnknown(Retryable, code="outcome-unknown"):
    """The request was sent, and its outcome is unknown: no answer came, or one that does not say.

    What to do: deliver it again. While the provider keeps the key, the request is sent with the same key, or looked
    up. After that it is in doubt.
    """


class StoreUnavailable(Retryable, code="store-unavailable"):
    """The store did not answer. The handler did not run, or its outcome could not be recorded.

    What to do: do not ack, and deliver it again later. Check whether the store is up: `effectonce check`.
    """


class TransactionConflict(Retryable, code="transaction-conflict"):
    """The database ended this transaction in favour of another one: a deadlock, or a serialization failure.

    What to do: roll it back, and run all of it again in a new transaction. `Inbox.handler` does that for you.
    """


class BrokerUnavailable(Retryable, code="broker-unavailable"):
    """The broker did not answer. What was sent may or may not have arrived.

    What to do: send it again under the same id. Consumers recognise the second one.
    """


class InDoubt(EffectOnceError, code="in-doubt"):
    """An earlier attempt ended without saying whether its effect happened. Nothing runs until an operator decides.

    What to do: look at the outside system, then tell effectonce: `effectonce records resolve`, `effectonce intents
    resolve` or `effectonce sagas resolve`, or the dashboard. Keep the message.
    """


class PayloadMismatch(EffectOnceError, code="payload-mismatch"):
    """The key was used before with another payload. The handler did not run.

    What to do: fix the sender. It reuses keys, or its counter started again.
    """


class PayloadTooLarge(EffectOnceError, code="payload-too-large"):
    """The body of a request or of a message is larger than its limit. Nothing was done.

    What to do: send less, or raise the limit that the message names.
    """


class MissingKey(EffectOnceError, code="missing-key"):
    """The call has no key, so a duplicate could not be told from a new operation. It did not run.

    What to do: let the sender make an id before the first try, and use that, or a business key.
    """


class MissingPrincipal(MissingKey, code="missing-principal"):
    """The HTTP request names no caller, so another caller's key could be the same as its own.

    What to do: authenticate the request before the guard, or fix ``principal=``.
    """


class InvalidKey(EffectOnceError, code="invalid-key"):
    """The key, or the payload to fingerprint, contains a value that stores cannot keep unchanged.

    What to do: build the key from strings, integers and UUIDs. The message names the value.
    """


class KeyTooLong(InvalidKey, code="key-too-long"):
    """The key is longer than the limit.

    What to do: use an id as the key, or `keys.content_hash` of the long part.
    """


class LeaseLost(EffectOnceError, code="lease-lost"):
    """The handler ran, but another delivery had taken over, so its outcome was not recorded. The effect may have
    happened twice.

    What to do: find out why the process was silent for longer than its lease (paused, swapping, cut off), or set a
    longer ``lease=``.
    """


class ResultNotStored(EffectOnceError, code="result-not-stored"):
    """The operation is done, but its result could not be kept, so this duplicate has nothing to return.

    What to do: ack it. Return a smaller result, or one that JSON can hold, if duplicates need it.
    """


class PermanentFailure(EffectOnceError, code="permanent-failure"):
    """The operation failed for good earlier. ``error`` names the exception that it failed with.

    What to do: ack the duplicate. To run the operation again, fix the cause and redrive with a new generation.
    """

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class AttemptsExhausted(PermanentFailure, code="attempts-exhausted"):
    """Every allowed attempt was used without a recorded success. The text names the last error that was reported.

    What to do: fix the cause, then redrive the message.
    """


class SagaFailed(PermanentFailure, code="saga-failed"):
    """A step of the saga failed, and the steps before it are compensated. ``step`` names it. Duplicates get the same
    error.

    What to do: fix the cause, and start the saga again under a new id.
    """

    def __init__(self, message: str, error: str = "", step: str = "") -> None:
        super().__init__(message, error)
        self.step = step
        self.args = (message, error, step)

    def __str__(self) -> str:
        return str(self.args[0])


class CorruptRecord(EffectOnceError, code="corrupt-record"):
    """A stored row cannot be read: a newer version wrote it, someone changed it by hand, or it was sealed with another
    secret.

    What to do: run the newer version, or restore the old secret. `effectonce records show` shows the row.
    """


class NotInDoubt(EffectOnceError, code="not-in-doubt"):
    """`resolve` was called for a record that is not in doubt. Nothing changed.

    What to do: look at its state. To let a record that is done run again, forget it.
    """


class Undecodable(EffectOnceError, code="undecodable"):
    """The body is not a message of this envelope.

    What to do: move it to the dead letters. Delivering it again will not help.
    """


class ForgedMessage(Undecodable, code="forged-message"):
    """The signature over the raw bytes is missing, wrong, or made with an unknown key. Nothing was decoded.

    What to do: check the secrets on both sides. If they are right, someone is sending you forged messages.
    """


class UnknownType(EffectOnceError, code="unknown-type"):
    """No handler of the queue takes messages of this type. A worker puts this error on the dead letter, and does not
    raise it.

    What to do: add a handler for the type, or correct the sender; then redrive the message. `Worker(unknown=…)` says
    what happens to such messages.
    """


class Poison(EffectOnceError, code="poison"):
    """Too many attempts at this message never reported an outcome: it probably crashed their processes. A worker puts
    this error on the dead letter, and does not raise it.

    What to do: fix the handler, then redrive the message.
    """

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts

    def __str__(self) -> str:
        return (
            f"the last of {self.attempts} attempts never reported an outcome (its process probably crashed); fix the "
            "handler, then redrive the message"
        )


class NotAwaited(EffectOnceError, code="not-awaited"):
    """A call on an async connection was not awaited.

    Either its result was tested, which would always be true, or a handler returned before it was awaited, and the
    commit would have lost what the call had to write.

    What to do: write ``await`` in front of the call. The message names its line.
    """


class ConfigurationError(EffectOnceError, code="configuration"):
    """The code or the settings are wrong. Retrying will not help.

    What to do: what the message says, then restart.
    """


class UnknownScheme(ConfigurationError, code="unknown-scheme"):
    """No store and no broker has the scheme of this URL.

    What to do: use one of the schemes in the message.
    """


class MissingDriver(ConfigurationError, code="missing-driver"):
    """The driver library for this URL is not installed.

    What to do: run the install command in the message.
    """


class InvalidOption(ConfigurationError, code="invalid-option"):
    """An option of a URL or a call is unknown, or has a value that is not allowed.

    What to do: correct it. The message lists what is allowed.
    """


class ScopeTaken(ConfigurationError, code="scope-taken"):
    """Two functions use one scope on one store. Each would take the other's messages for duplicates.

    What to do: give each its own ``scope=``.
    """


class SagaChanged(ConfigurationError, code="saga-changed"):
    """A saga that is running was started under another definition: other steps, another version, or a compensation that
    is gone now. Nothing was changed.

    What to do: map the old steps to the new ones with `Saga.migrate`, or let the old release finish it.
    """


class Reentered(ConfigurationError, code="reentered"):
    """A handler called a guarded function under its own key. It would wait for itself.

    What to do: give the inner call its own scope or key.
    """


class SyncAsyncMismatch(ConfigurationError, code="sync-async-mismatch"):
    """A sync call of something async, an async call of something sync, or a blocking call inside a running event loop.

    What to do: use the other form, as the message says.
    """


class NotInTransaction(ConfigurationError, code="not-in-transaction"):
    """The connection has no open transaction, so the record would be committed without the effect.

    What to do: begin a transaction, or switch autocommit off.
    """


class UnsafeStore(ConfigurationError, code="unsafe-store"):
    """The server's settings allow it to lose records that it has confirmed.

    What to do: change the setting that the message names.
    """


class SchemaMissing(ConfigurationError, code="schema-missing"):
    """The tables do not exist.

    What to do: run ``effectonce migrate --store URL``, or your own migration.
    """


class SchemaMismatch(SchemaMissing, code="schema-mismatch"):
    """The tables have a version that this release cannot read.

    What to do: run ``effectonce migrate --store URL``; if the tables are newer, upgrade effectonce.
    """


#: The names of all errors. They are public: `effectonce` has them, too.
ERROR_NAMES: Final = sorted(name for name, value in list(globals().items()) if isinstance(value, type))
