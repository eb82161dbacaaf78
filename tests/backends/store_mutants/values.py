"""Keys, results and spans that do not stay what they were."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from effectonce.record import Claim, Look, Record, Remember, Settlement

from .base import Mutant, caught_by


def _changed_key(change: Callable[[str], str]) -> type[Mutant]:
    class Changed(Mutant):
        def apply(self, op: Any, now: int) -> Any:
            return self.apply_correctly(replace(op, key=change(op.key)), now)

        async def get(self, scope: str, key: str) -> Record | None:
            return await super().get(scope, change(key))

    return Changed


def _without_accents(key: str) -> str:
    return unicodedata.normalize("NFC", key)


for _name, _change in {
    "Lowercase": str.lower,
    "Casefolded": str.casefold,
    "TrailingSpacesCut": str.rstrip,
    "Normalised": _without_accents,
    "CutAt1023": lambda key: key[:1023],
    "Unescaped": lambda key: key.replace("\\\\", "\\"),
}.items():
    _mutant = caught_by("every_key_is_its_own")(_changed_key(_change))
    _mutant.__name__ = f"{_name}Keys"


@caught_by("scope_and_key_do_not_run_together")
class ScopeAndKeyRunTogether(Mutant):
    """F23."""

    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(replace(op, scope="", key=op.scope + op.key), now)


@caught_by("every_scope_is_its_own", "scope_and_key_do_not_run_together", "forget_touches_its_own_identity_only")
class OneScopeForAll(Mutant):
    """F24."""

    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(replace(op, scope=op.scope[:22]), now)

    async def forget(self, scope: str, key: str, retention: int) -> bool:
        return await super().forget(scope[:22], key, retention)


@caught_by("results_are_stored_byte_for_byte")
class EmptyResultIsNone(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(replace(op, result=op.result or None) if isinstance(op, Settlement) else op, now)


@caught_by("results_are_stored_byte_for_byte", "errors_are_stored_byte_for_byte")
class NoneIsAnEmptyResult(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Settlement):
            op = replace(op, result=op.result or b"", error=op.error or b"")
        return self.apply_correctly(op, now)


@caught_by("results_are_stored_byte_for_byte", "a_large_result_is_stored_whole")
class ResultsAreText(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Settlement) and op.result is not None:
            op = replace(op, result=op.result.decode("utf-8", "replace").encode())
        return self.apply_correctly(op, now)


@caught_by("a_large_result_is_stored_whole", "a_batch_of_large_results_is_stored_whole")
class ResultsAreCutAt64K(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Settlement | Remember) and op.result is not None:
            op = replace(op, result=op.result[:65535])
        return self.apply_correctly(op, now)


@caught_by("owners_are_compared_as_bytes")
class OwnersFoldCase(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        return self.apply_correctly(
            replace(op, owner=op.owner.lower()) if isinstance(op, Claim | Settlement) else op, now
        )


@caught_by("fingerprints_are_compared_as_bytes")
class FingerprintsFoldCase(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if isinstance(op, Claim):
            op = replace(op, fingerprints=op.fingerprints.lower())
        return self.apply_correctly(op, now)


@caught_by("long_spans_are_kept")
class SpansAre32BitSeconds(Mutant):
    def apply(self, op: Any, now: int) -> Any:
        if not isinstance(op, Look):
            op = replace(op, retention_us=op.retention_us % (1 << 50))
        return self.apply_correctly(op, now)
