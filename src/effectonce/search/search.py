"""`search`: asks every place about one term, side by side, and waits for no answer longer than its time limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from effectonce.core.privacy import Privacy
from effectonce.core.run_sync import run_in_thread
from effectonce.dead_letters.queue import DeadLetterQueue
from effectonce.errors import EffectOnceError, scrub_urls, show
from effectonce.store import Store
from effectonce.values.key_term import KeyTerm, parse_key_term

from .matches import Match, PlaceName, PlaceResult
from .messages import find_in_dead_letters, find_in_inbox, find_in_outbox
from .records import find_records

TIMEOUT_S: Final = 8.0
MAX_MATCHES: Final = 100
"""How many matches a place returns at most."""
MAX_KEYS_BY_MESSAGE: Final = 5
"""Of how many messages, found by their id, the keys are searched for as well."""
NO_QUEUES: Final = (
    "no queue is named, so its dead letters were not searched: give --worker MODULE:WORKER or --queue NAME"
)
"""Why the dead letters of a broker cannot be searched."""

Finder = Callable[[], tuple[list[Match], str]]


class SearchPlaces(Struct, frozen=True):
    """Where to search. ``inbox`` and ``outbox``: the stores whose databases hold them; None: there is none.

    ``scopes``: those of the programs, for a store that cannot list its own. ``privacy``: the secret of a private store,
    to find its keys. ``no_queues``: why there are no dead letters to search; "" if there are, or if none were asked
    for.
    """

    store: Store
    inbox: Store | None = None
    inbox_table: str | None = None
    outbox: Store | None = None
    outbox_table: str | None = None
    queues: Mapping[str, DeadLetterQueue] = {}
    no_queues: str = ""
    scopes: Sequence[str] = ()
    privacy: Privacy | None = None


def search(
    text: str, places: SearchPlaces, *, limit: int = MAX_MATCHES, timeout: float = TIMEOUT_S
) -> list[PlaceResult]:
    """Search for a key, the first part of a composite key, an ordering key or a message id; ``text*`` is a prefix.

    Records and inbox rows know their key only. A message that is found by its id, in the outbox or as a dead letter,
    has a key as well: that is searched for, too. A place that fails or does not answer in time says so in its
    `PlaceResult`. Raises `MissingKey` and `InvalidKey` for a text that no key can be.
    """
    term = parse_key_term(text)
    asked: list[tuple[PlaceResult, Future[tuple[list[Match], str]]]] = []

    def ask(place: PlaceName, name: object, find: Finder) -> None:
        asked.append((PlaceResult(place=place, name=show(name)), run_in_thread(find, f"effectonce-search-{place}")))

    ask_by_key(places, [term], limit, ask)
    outbox = places.outbox
    if outbox is not None:
        ask("outbox", _address(outbox), lambda: find_in_outbox(outbox, places.outbox_table, term, limit))
    for name, queue in places.queues.items():
        ask("dead letters", name, _dead_letter_finder(queue, name, term, limit))
    answers = _collect(asked, timeout, limit)
    keys = _keys_by_message_id(answers, term)
    if keys:
        asked.clear()
        ask_by_key(places, keys, limit, ask)
        # A place that hung may have used all of the first search's time, so this one has a time of its own.
        answers = _merge(answers, _collect(asked, timeout, limit), limit)
    if places.no_queues:
        answers.append(PlaceResult(place="dead letters", name="", problem=places.no_queues))
    return answers


def ask_by_key(
    places: SearchPlaces, terms: Sequence[KeyTerm], limit: int, ask: Callable[[PlaceName, object, Finder], None]
) -> None:
    """Ask the places that know messages by their keys only: records, with the intents and sagas among them, and the
    inbox."""
    inbox = places.inbox
    ask(
        "records",
        _address(places.store),
        lambda: find_records(places.store, terms, places.scopes, places.privacy, limit),
    )
    if inbox is None:
        return

    def find() -> tuple[list[Match], str]:
        found = [find_in_inbox(inbox, places.inbox_table, term, limit) for term in terms]
        return [match for matches, _ in found for match in matches], found[0][1]

    ask("inbox", _address(inbox), find)


def _dead_letter_finder(queue: DeadLetterQueue, name: str, term: KeyTerm, limit: int) -> Finder:
    return lambda: find_in_dead_letters(queue, name, term, limit)


def _collect(
    asked: Sequence[tuple[PlaceResult, Future[tuple[list[Match], str]]]], timeout: float, limit: int
) -> list[PlaceResult]:
    """Wait for all answers, ``timeout`` seconds at most. A search that is late ends in its thread, unheard."""
    wait([future for _, future in asked], timeout=timeout)
    return [_read(answer, future, timeout, limit) for answer, future in asked]


def _read(answer: PlaceResult, future: Future[tuple[list[Match], str]], timeout: float, limit: int) -> PlaceResult:
    if not future.done():
        return replace(answer, problem=f"it has not answered within {timeout:g} s; check the server and the network")
    error = future.exception()
    if error is None:
        matches, gap = future.result()
        more = f"there may be more than these {limit}" if len(matches) >= limit else ""
        return replace(answer, matches=matches, gap="; ".join(filter(None, (gap, more))))
    if not isinstance(error, Exception):
        raise error
    text = str(error) if isinstance(error, EffectOnceError) else f"{type(error).__name__}: {scrub_urls(str(error))}"
    return replace(answer, problem=show(text, 500))


def _keys_by_message_id(answers: Sequence[PlaceResult], term: KeyTerm) -> list[KeyTerm]:
    """The keys of messages that were found by another name than their key."""
    keys = [match.key for answer in answers for match in answer.matches if match.by == "message id" and match.key]
    return [KeyTerm(key) for key in dict.fromkeys(keys) if not term.matches(key)][:MAX_KEYS_BY_MESSAGE]


def _merge(answers: Sequence[PlaceResult], more: Sequence[PlaceResult], limit: int) -> list[PlaceResult]:
    """Add the matches of a second search to those of the first one in the same place."""
    by_place = {answer.place: answer for answer in more}
    merged = []
    for answer in answers:
        second = by_place.get(answer.place)
        if second is not None:
            matches = list(dict.fromkeys([*answer.matches, *second.matches]))[:limit]
            gap, problem = answer.gap or second.gap, answer.problem or second.problem
            answer = replace(answer, matches=matches, gap=gap, problem=problem)
        merged.append(answer)
    return merged


def _address(store: Store) -> str:
    """The store's address, without secrets."""
    return repr(store.runtime.backend)
