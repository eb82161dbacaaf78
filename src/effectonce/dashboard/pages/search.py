"""The search in the header: everything that is known about one key, with a link to each thing."""

from __future__ import annotations

from starlette.responses import Response

from effectonce.dashboard.context import RequestContext
from effectonce.dashboard.dashboard import link
from effectonce.errors import InvalidKey, MissingKey
from effectonce.search.matches import Match, PlaceResult


def show_results(context: RequestContext) -> Response:
    """Show what each place has found. One that cannot be asked says so on the page, beside the others."""
    term = context.text("key").strip()
    answers: list[PlaceResult] = []
    problem = ""
    try:
        answers = context.sources.find(term)
    except (MissingKey, InvalidKey) as error:
        problem = str(error)
    return context.render(
        "search.html",
        term=term,
        answers=answers,
        found=sum(len(answer.matches) for answer in answers),
        problem=problem,
        address_of=address_of,
    )


def address_of(match: Match) -> str:
    """Return the address of the page that shows a match."""
    if match.kind == "inbox":
        return link("/inbox-message", scope=match.scope, key=match.key)
    if match.kind == "outbox":
        return link("/outbox", state=match.state)
    if match.kind == "dead letter":
        return link("/dead-letter", queue=match.scope, id=match.id)
    return link("/saga" if match.kind == "saga" else "/record", scope=match.scope, key=match.id)
