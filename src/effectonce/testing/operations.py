"""Names of the store's operations, as timelines show them."""

from __future__ import annotations

from effectonce.record import Batchable, Claim, Look, Note, Remember, Renewal, Settlement

_SETTLEMENTS = {"done": "complete", "free": "release", "failed": "fail", "in_doubt": "doubt"}
_OTHERS = {Claim: "claim", Look: "look", Note: "note", Remember: "remember", Renewal: "renew"}


def operation_name(op: Batchable) -> str:
    """Return the name of ``op``: ``"claim"``, ``"complete"``, ``"release"``, ``"refund"`` and so on."""
    if isinstance(op, Settlement):
        return "refund" if op.refund else _SETTLEMENTS[op.state]
    return _OTHERS[type(op)]
