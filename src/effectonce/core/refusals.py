"""Which failed records are refusals: the answer of a business rule, and nothing for an operator to look at."""

from __future__ import annotations

from effectonce.errors import CorruptRecord
from effectonce.record import Record
from effectonce.values.scopes import kind_of_scope

from .codec import decode_error
from .privacy import SEALED_PREFIX


def is_refused(record: Record) -> bool:
    """Whether a failed record holds the answer of a business rule: its handler raised an error that it declares as
    permanent, or the provider of an intent declined.

    Not refused, but failed, are a record whose attempts ran out or that an operator gave up; a saga, whatever its step
    raised; and a record whose error this process cannot read.
    """
    if record.state != "failed" or record.error is None or kind_of_scope(record.scope) == "saga":
        return False
    try:
        return record.error[:1] != SEALED_PREFIX and decode_error(record.error).code == "permanent-failure"
    except CorruptRecord:
        return False
