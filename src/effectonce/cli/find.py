"""`effectonce find`: everything that is known about one order, in one table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer
from msgspec import structs

from effectonce.broker import Broker, connect_broker
from effectonce.contracts import InboxBackend, OutboxBackend
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.display.formatting import format_ago, format_iso
from effectonce.errors import show
from effectonce.search.matches import Match, PlaceResult
from effectonce.search.search import MAX_MATCHES, NO_QUEUES, SearchPlaces, search
from effectonce.store import Store
from effectonce.worker.worker import Worker

from . import options
from .output import print_json, print_page
from .programs import close_program, load_worker
from .settings import find_setting, require_url

Names = list[str] | None


def find(
    term: Annotated[
        str, typer.Argument(metavar="KEY", help="A key, the first part of one, an ordering key, a message id; or KEY*.")
    ],
    store_url: options.StoreUrl = None,
    broker_url: options.BrokerUrl = None,
    worker: Annotated[
        Names,
        typer.Option(
            metavar="MODULE:WORKER", help="A worker whose store, inbox and dead letters to search. Repeatable."
        ),
    ] = None,
    queue: options.Queues = None,
    group: options.Group = "worker",
    scope: Annotated[
        Names,
        typer.Option(metavar="SCOPE", help="Search this scope, too, in a store that cannot list its own. Repeatable."),
    ] = None,
    inbox: options.InboxUrl = None,
    inbox_table: options.InboxTable = None,
    outbox: options.OutboxUrl = None,
    table: options.Table = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="List at most this many per place.")
    ] = MAX_MATCHES,
    as_json: options.Json = False,
) -> None:
    """Find an order everywhere: records, intents, sagas, inbox, outbox, dead letters. Nothing is changed.

    ORDER-42 finds that key, and composite keys that begin with it (ORDER-42:refund); ORDER-4* finds every key
    with that beginning. It says which places it could not search fully. Exit code 1 if nothing was found.
    """
    with ExitStack() as stack:
        workers = [stack.enter_context(_open_worker(name)) for name in worker or ()]
        store = _open_record_store(stack, store_url, workers)
        # A store that is named for them is asked, and answers that it cannot hold them: it is not left out unsaid.
        inbox_store = store if isinstance(store.runtime.backend, InboxBackend) or inbox_table else None
        if inbox is not None:
            inbox_store = stack.enter_context(options.open_store(inbox))
        outbox_store = store if isinstance(store.runtime.backend, OutboxBackend) or table else None
        if outbox is not None:
            outbox_store = stack.enter_context(options.open_store(outbox))
        queues = _dead_letter_queues(stack, broker_url, workers, queue or (), group)
        places = SearchPlaces(
            store,
            inbox=inbox_store,
            inbox_table=inbox_table or next((worker.inbox.table_name for worker in workers if worker.inbox), None),
            outbox=outbox_store,
            outbox_table=table,
            queues=queues,
            no_queues="" if queues or find_setting("broker", broker_url) is None else NO_QUEUES,
            scopes=[*(scope or ()), *(route.policy.scope for worker in workers for route in worker.routes)],
            privacy=next((worker.store.runtime.privacy for worker in workers if worker.store is not None), None),
        )
        answers = search(term, places, limit=limit)
        now = store.now() if not any(answer.place == "records" and answer.problem for answer in answers) else None
    matches = [match for answer in answers for match in answer.matches]
    if as_json:
        rows = [{**structs.asdict(match), "changed_at": format_iso(match.changed_at)} for match in matches]
        print_json({"matches": rows, "places": [_place_facts(answer) for answer in answers]})
    else:
        heads = ("found", "key", "where", "state", "changed", "by", "message_id", "detail")
        rows = [_row(match, now) for match in matches]
        print_page(as_json, "matches", rows, heads, none=f"nothing found for {show(term)}", cursor=None)
        for answer in answers:
            for text in filter(None, (answer.problem and f"could not be searched: {answer.problem}", answer.gap)):
                print(f"{answer.place}{f' ({answer.name})' if answer.name else ''}: {text}", file=sys.stderr)
    if not matches:
        raise typer.Exit(1)


@contextmanager
def _open_worker(name: str) -> Iterator[Worker]:
    worker = load_worker(name)
    try:
        yield worker
    finally:
        close_program(worker)


def _open_record_store(stack: ExitStack, url: str | None, workers: Sequence[Worker]) -> Store:
    """The store that is named, else that of a worker."""
    own = next((worker.store for worker in workers if worker.store is not None), None)
    if own is not None and find_setting("store", url) is None:
        return own
    return stack.enter_context(options.open_store(url))


def _dead_letter_queues(
    stack: ExitStack, broker_url: str | None, workers: Sequence[Worker], queues: Sequence[str], group: str
) -> dict[str, DeadLetterQueue]:
    """The dead letters of the workers' queues, and of the queues that are named, by ``worker/queue``."""
    found = {f"{worker.name}/{queue}": DeadLetterQueue(worker, queue) for worker in workers for queue in worker.queues}
    if queues:
        broker = stack.enter_context(_open_broker(broker_url))
        found |= {f"{group}/{queue}": DeadLetterQueue(broker, queue, group=group) for queue in queues}
    return found


@contextmanager
def _open_broker(url: str | None) -> Iterator[Broker]:
    broker = connect_broker(require_url("broker", url))
    try:
        yield broker
    finally:
        broker.close()


def _row(match: Match, now: int | None) -> dict[str, Any]:
    return {
        "found": match.kind,
        "key": match.key,
        "where": match.scope,
        "state": match.state,
        "changed": format_ago(match.changed_at, now),
        "by": "" if match.by == "key" else match.by,
        "message_id": match.message_id,
        "detail": match.detail,
    }


def _place_facts(answer: PlaceResult) -> dict[str, Any]:
    return {"place": answer.place, "name": answer.name, "gap": answer.gap, "problem": answer.problem}
