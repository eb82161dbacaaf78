"""Mutants that no test can tell from the original, or that none should: each with its reason.

A mutant is named by its file and by its line before and after; it is left out of the sample as long as the line stands
as it is written here.
"""

from __future__ import annotations

from typing import Final

#: (file, the line before, the line after): why nobody can tell.
EQUIVALENTS: Final[dict[tuple[str, str, str], str]] = {
    (
        "backends/memory/store.py",
        'self.owner = b""',
        "pass",
    ): "the token changes as well, and a settlement must have both",
    (
        "backends/sqlite/store.py",
        "if 0 < op.max_attempts <= stored.attempts and self._exhaust(cursor, op, stored.token, now):",
        "if 0 <= op.max_attempts <= stored.attempts and self._exhaust(cursor, op, stored.token, now):",
    ): "without a limit the statement before has taken every record that may be taken",
    (
        "outbox/outbox.py",
        "if batch and (len(batch) == _MAX_STATEMENT_ROWS or batch_size + size > _MAX_STATEMENT_BYTES):",
        "if batch and (len(batch) == _MAX_STATEMENT_ROWS or batch_size + size >= _MAX_STATEMENT_BYTES):",
    ): "a statement may be one byte shorter",
    (
        "relay/batch_size.py",
        "if payload_bytes > 0:",
        "if payload_bytes > 1:",
    ): "a batch of one byte is not cut either way",
    (
        "http/guard.py",
        "BODY_CHUNK_BYTES: Final = 65_536",
        "BODY_CHUNK_BYTES: Final = 131072",
    ): "how much is read at once is a question of speed",
    (
        "sagas/runner.py",
        "unknown = is_ambiguous(error, progress.unknown_since > 0 or progress.crashes > 0)",
        "unknown = is_ambiguous(error, progress.unknown_since > 1 or progress.crashes > 0)",
    ): "it is 0, or a time",
}
