"""`Verdict`: did the effect of one send happen?"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Verdict(Struct, frozen=True):
    """What a response, or the lack of one, says about the effect.

    - ``success``: the effect happened, and this is the result;
    - ``failure``: it did not happen, and never will under this key: declined, refused;
    - ``not_executed``: the request was refused before anything could happen: send it again later;
    - ``unknown``: it may have happened. A timeout, a reset, a 5xx. From a reconciler: it cannot be looked
      up, so an operator decides;
    - ``pending``: it may have happened, and the provider cannot tell yet: ask again after ``retry_after`` seconds.
    """

    kind: Literal["success", "failure", "not_executed", "unknown", "pending"]
    result: Any = None
    why: str = ""
    retry_after: float = 1.0

    @staticmethod
    def success(result: Any = None) -> Verdict:
        return Verdict("success", result)

    @staticmethod
    def failure(why: str) -> Verdict:
        return Verdict("failure", None, why)

    @staticmethod
    def not_executed(why: str, retry_after: float = 1.0) -> Verdict:
        return Verdict("not_executed", None, why, retry_after)

    @staticmethod
    def unknown(why: str, retry_after: float = 1.0) -> Verdict:
        return Verdict("unknown", None, why, retry_after)

    @staticmethod
    def pending(why: str, retry_after: float = 1.0) -> Verdict:
        return Verdict("pending", None, why, retry_after)
