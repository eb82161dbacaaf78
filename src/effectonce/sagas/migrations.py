"""Sagas in flight across releases: a log of an older definition is fitted to the current one, or refused."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from effectonce.errors import SagaChanged, show

from .log import LoggedStep, SagaLog


class SagaMigration(Struct, frozen=True):
    """How sagas that were begun under an older version continue under this one."""

    renamed: Mapping[str, str]
    drop_compensation: frozenset[str] = frozenset()  # steps whose compensation was removed on purpose


def fit_to_definition(
    log: SagaLog, version: str, undoable: Mapping[str, bool], migrations: Mapping[str, SagaMigration]
) -> None:
    """Change ``log`` into one of the current definition: its ``version``, its steps, and which of them are undoable.

    Raises `SagaChanged` where the saga was begun under another definition and no migration says how they fit.
    """
    begun_under, names = log.version, list(undoable)
    logged = [entry.name for entry in log.entries]
    migration = migrations.get(begun_under)
    about = f"saga {show(log.id)!r} was begun under version {show(begun_under)!r} with the steps {', '.join(logged)}"
    if log.version != version or logged != names:
        about = f"{about}, and this process has version {show(version)!r} with {', '.join(names)}"
        if migration is None:
            raise SagaChanged(
                f"{about}: let the old release finish it, or define how they fit together: "
                f"saga.migrate({begun_under!r}, {{'old_step': 'new_step'}})"
            )
        _rename_steps(log, version, undoable, migration.renamed, about)
    dropped = migration.drop_compensation if migration is not None else frozenset()
    lost = [entry.name for entry in log.entries if _lost_compensation(entry, undoable) and entry.name not in dropped]
    if lost:
        renamed = {} if migration is None else dict(migration.renamed)
        raise SagaChanged(
            f"{about}: {', '.join(lost)} may have happened, and its compensation was removed. Add the compensation "
            f"again, let the old release finish it, or confirm the removal: saga.migrate({begun_under!r}, "
            f"{renamed!r}, drop_compensation={sorted({*lost, *dropped})!r})"
        )
    for entry in log.entries:
        entry.undoable = undoable[entry.name]


def _lost_compensation(entry: LoggedStep, undoable: Mapping[str, bool]) -> bool:
    """Whether the step may have happened, was not undone, and has lost the compensation that it was begun with."""
    undone = entry.started_undo is not None and entry.started_undo.state == "done"
    return entry.undoable and not undoable[entry.name] and entry.do.state not in ("pending", "failed") and not undone


def _rename_steps(
    log: SagaLog, version: str, undoable: Mapping[str, bool], renamed: Mapping[str, str], about: str
) -> None:
    names = list(undoable)
    entries = {renamed.get(entry.name, entry.name): entry for entry in log.entries}
    begun = [name for name, entry in entries.items() if entry.do.state != "pending"]
    if len(entries) < len(log.entries):
        raise SagaChanged(f"{about}: the migration makes two of its steps one")
    if lost := [name for name in begun if name not in undoable]:
        raise SagaChanged(f"{about}: {', '.join(lost)} was begun and has no step any more; map it to one")
    if log.phase == "running" and begun != names[: len(begun)]:
        raise SagaChanged(f"{about}: a step stands before {begun[-1]} that has not run; put new ones at the end")
    for name, entry in entries.items():
        entry.name = name
    log.failed_at = renamed.get(log.failed_at, log.failed_at)
    log.doubtful = renamed.get(log.doubtful, log.doubtful)
    log.version = version
    log.entries = [entries.get(name) or LoggedStep(name, name, undoable[name]) for name in names]
