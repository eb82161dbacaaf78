"""The user's programs (``module:worker``, ``module:saga``): loading them, and listing and recovering their records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from effectonce.broker import Broker
from effectonce.contracts import Event
from effectonce.display.formatting import format_state, format_target
from effectonce.errors import ConfigurationError, InvalidOption, NotInDoubt, show
from effectonce.guard.introspection import name_of
from effectonce.intents.intents import Intents
from effectonce.record import Record, State
from effectonce.relay.relay import Relay
from effectonce.store import Store
from effectonce.worker.worker import Worker

from .audit import audit_action
from .interrupts import GracefulInterrupt
from .loading import load_object
from .output import report
from .progress import Progress

T = TypeVar("T")

MAX_COUNTED_RECORDS = 10_000  # the total of a progress bar is counted up to here

_FINISHING_EVENTS = frozenset(("completed", "failed", "exhausted", "in_doubt", "released"))


def load_program(name: str, example: str, *kinds: type[T]) -> T:
    """Import the object that ``module:name`` names. Raises `ConfigurationError` if it is none of the ``kinds``."""
    program = load_object(name, example)
    if not isinstance(program, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigurationError(f"{show(name)!r} is of type {name_of(type(program))}, not {expected}")
    return program


def load_worker(name: str) -> Worker:
    return load_program(name, "shop.worker:worker", Worker)


def load_service(name: str) -> Worker | Relay:
    service = load_program(name, "shop.worker:worker", Worker, Relay)
    assert isinstance(service, Worker | Relay)
    return service


def close_program(program: Worker | Intents | Relay) -> None:
    """Close a program's connections: some clients warn when the process ends before they are closed."""
    if not isinstance(program, Intents) and isinstance(program.broker, Broker):
        program.broker.close()
    if program.store is not None:
        program.store.close()


def list_page(
    store: Store, lists: Sequence[tuple[str, State | None]], limit: int, cursor: str | None
) -> tuple[list[Record], str | None]:
    """Return a page over several lists, one after the other, and the cursor of the next page.

    A list is a scope and a state of its records; None as the state stands for the unfinished ones. The cursor is
    ``"N:CURSOR"``: the index of a list, and the store's cursor in that list.
    """
    number, _, place = (cursor or "0:").partition(":")
    if not (number.isascii() and number.isdecimal() and len(number) < 9):
        raise InvalidOption(f"--cursor {show(cursor)!r} is not the cursor of a page: copy it from the page's last line")
    records: list[Record] = []
    for index in range(int(number), len(lists)):
        scope, state = lists[index]
        while True:
            page = store.list(
                scope=scope, state=state, unfinished=state is None, limit=limit - len(records), cursor=place or None
            )
            records, place = records + page.records, page.cursor or ""
            if len(records) >= limit and (place or index + 1 < len(lists)):
                return records, f"{index}:{place}" if place else f"{index + 1}:"
            if not place:
                break
    return records, None


def require_in_doubt(store: Store, scope: str, key: str) -> None:
    """Raise `NotInDoubt` if the record is not in doubt, before the operator is asked to confirm. `Store.resolve` checks
    again."""
    record = store.get(scope, key)
    if record is None:
        raise NotInDoubt(f"{format_target(scope, key)} has no record: there is nothing to resolve")
    state = format_state(record, store.now())
    if record.state != "in_doubt" and not (state == "lapsed" and record.doubt_on_lapse):
        raise NotInDoubt(f"{format_target(scope, key)} is {state}, not in doubt: there is nothing to resolve")


def run_recovery(
    recover: Callable[[Callable[[], bool]], Mapping[str, int]],
    *,
    action: str,
    target: str,
    store: Store,
    scopes: Collection[str],
    unfinished: int,
    audit: str | None,
    as_json: bool,
) -> None:
    """Run ``recover(stop)`` on what is unfinished in ``scopes``, until Ctrl-C; report how many had which outcome."""
    with audit_action(audit, action, target, place=store.runtime.backend), GracefulInterrupt() as interrupt:
        with Progress(action, unfinished) as progress:

            def count_finished(event: Event) -> None:
                if event.kind in _FINISHING_EVENTS and event.scope in scopes:
                    progress.step()

            store.add_hook(count_finished)
            counts = recover(lambda: interrupt.requested)
        text = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        report(as_json, text, **counts)
        interrupt.raise_if_requested()
