"""Sagas in flight across releases: a log of an older definition is fitted to the current one, or refused."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from effectonce.errors import SagaChanged, show

from .log import LoggedStep, SagaLog


class SagaMigration(Struct, frozen=True):
    """How sagas that were started under an older version continue under this one."""

    renamed: Mapping[str, str]
    drop_compensation: frozenset[str] = frozenset()  # steps whose compensation was removed on purpose


def fit_to_definition(
    log: SagaLog, version: str, undoable: Mapping[str, bool], migrations: Mapping[str, SagaMigration]
) -> None:
    """Change ``log`` into one of the current definition: its ``version``, its steps, and which of them are undoable.

    Raises `SagaChanged` where the saga was started under another definition and no migration says how they fit.
    """
    old_version, names = log.version, list(undoable)
    logged = [entry.name for entry in log.entries]
    migration = migrations.get(old_version)
    about = f"saga {show(log.id)!r} was started under version {show(old_version)!r} with the steps {', '.join(logged)}"
    if log.version != version or logged != names:
        about = f"{about}, and this process has version {show(version)!r} with {', '.join(names)}"
        if migration is None:
            raise SagaChanged(
                f"{about}: let the old release finish it, or define how they fit together: "
                f"saga.migrate({old_version!r}, {{'old_step': 'new_step'}})"
            )
        _rename_steps(log, version, undoable, migration.renamed, about)
    dropped = migration.drop_compensation if migration is not None else frozenset()
    lost = [entry.name for entry in log.entries if _lost_compensation(entry, undoable) and entry.name not in dropped]
    if lost:
        renamed = {} if migration is None else dict(migration.renamed)
        raise SagaChanged(
            f"{about}: {', '.join(lost)} may have happened, and its compensation was removed. Add the compensation "
            f"again, let the old release finish it, or confirm the removal: saga.migrate({old_version!r}, "
            f"{renamed!r}, drop_compensation={sorted({*lost, *dropped})!r})"
        )
    for entry in log.entries:
        entry.undoable = undoable[entry.name]


def _lost_compensation(entry: LoggedStep, undoable: Mapping[str, bool]) -> bool:
    """Whether the step may have happened, was not undone, and has lost the compensation that it started with."""
    undone = entry.started_undo is not None and entry.started_undo.state == "done"
    return entry.undoable and not undoable[entry.name] and entry.do.state not in ("pending", "failed") and not undone


def _rename_steps(
    log: SagaLog, version: str, undoable: Mapping[str, bool], renamed: Mapping[str, str], about: str
) -> None:
    names = list(undoable)
    entries = {renamed.get(entry.name, entry.name): entry for entry in log.entries}
    started = [name for name, entry in entries.items() if entry.do.state != "pending"]
    if len(entries) < len(log.entries):
        raise SagaChanged(f"{about}: the migration makes two of its steps one")
    if lost := [name for name in started if name not in undoable]:
        raise SagaChanged(f"{about}: {', '.join(lost)} has started and is not a step any more; map it to one")
    if log.phase == "running" and started != names[: len(started)]:
        raise SagaChanged(f"{about}: a step stands before {started[-1]} that has not run; put new ones at the end")
    for name, entry in entries.items():
        entry.name = name
    log.failed_at = renamed.get(log.failed_at, log.failed_at)
    log.step_in_doubt = renamed.get(log.step_in_doubt, log.step_in_doubt)
    log.version = version
    log.entries = [entries.get(name) or LoggedStep(name, name, undoable[name]) for name in names]
