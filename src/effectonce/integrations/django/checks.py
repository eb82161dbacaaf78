"""System checks: settings of a project under which a promise would not hold.

``manage.py check`` runs `check_settings` and `check_views`; with ``--deploy`` also `check_store_in_production`, and
with ``--database default`` also `check_tables`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder
from django.urls import get_resolver
from django.utils.module_loading import import_string

from effectonce.errors import ConfigurationError, EffectOnceError, SchemaMissing
from effectonce.store import Store

from .middleware import IdempotencyMiddleware, user_id
from .options import DEFAULT_SERVICE, get_store, read_options
from .views import Idempotency

AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


def check_settings(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Check the setting EFFECTONCE, the store that it names, and the place of the middleware."""
    try:
        setting = read_options()
    except ConfigurationError as error:
        return [Error(str(error), id="effectonce.E001")]
    messages: list[CheckMessage] = []
    try:
        get_store()
    except EffectOnceError as error:
        messages.append(Error(f"EFFECTONCE['STORE'] cannot be used: {error}", id="effectonce.E002"))
    position = _position_of_middleware()
    return messages if position is None else [*messages, *_check_middleware(setting, position)]


def _check_middleware(setting: dict[str, Any], position: int) -> Iterator[CheckMessage]:
    if setting["PRINCIPAL"] is None:
        yield Error(
            "EFFECTONCE['PRINCIPAL'] is missing: one caller could get the response of another.",
            hint="Name the function that names the caller: 'effectonce.integrations.django.user_id'.",
            id="effectonce.E003",
        )
    elif setting["PRINCIPAL"] is user_id and AUTHENTICATION not in settings.MIDDLEWARE[:position]:
        yield Error(
            "IdempotencyMiddleware comes before AuthenticationMiddleware, so user_id finds no user.",
            hint="Put it after everything that authenticates and limits requests.",
            id="effectonce.E004",
        )
    if setting["SERVICE"] == DEFAULT_SERVICE:
        yield _missing_scope("EFFECTONCE['SERVICE'] is missing", "SERVICE")


def check_views(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Check for scopes that views leave out or share, and for transactions that end after their record's."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    return [message for route, view in _views(get_resolver()) for message in _check_view(route, view)]


def _check_view(route: str, view: Any) -> Iterator[CheckMessage]:
    guard = _guard_of(view)
    if guard is not None and _is_guarded_by_middleware(guard):
        yield Error(
            f"The view at {route!r} and IdempotencyMiddleware share the scope {guard.scope!r}: one has taken the key "
            "when the other claims it, and every request is refused.",
            hint="Leave the guard to one of them: remove the decorator, or set EFFECTONCE['DEFAULT'] to None.",
            id="effectonce.E005",
        )
    elif guard is not None and guard.scope == DEFAULT_SERVICE:
        yield _missing_scope(f"The guard of the view at {route!r} has no service=", "service=")
    database = getattr(view, "transactional_database", None)
    others = _atomic_databases(view) - {database} if database is not None else set()
    if others:
        yield Warning(
            f"The view at {route!r} is recorded as done in {database!r} before ATOMIC_REQUESTS commits what it writes "
            f"to {', '.join(map(repr, sorted(others)))}. If that fails, it is lost.",
            hint="Write to one database, or decorate the view with transaction.non_atomic_requests(using=…).",
            id="effectonce.W002",
        )


def _missing_scope(what: str, setting: str) -> CheckMessage:
    return Warning(
        f"{what}, so the scope of its requests is {DEFAULT_SERVICE!r}. A second project with that scope on the same "
        "store would get the responses of this one, and not run.",
        hint=f"Give {setting} a name that no other project on this store has.",
        id="effectonce.W001",
    )


def check_store_in_production(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Check that the store outlives its process."""
    store = _store()
    if store is None or store.capabilities.name != "memory":
        return []
    return [
        Error(
            "EFFECTONCE['STORE'] is in memory: every process has its own, and forgets it when it ends.",
            hint="Name the alias of a database, or give the URL of a server.",
            id="effectonce.E006",
        )
    ]


def check_tables(app_configs: Any, databases: Collection[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Check that the store answers, and can keep its promise.

    `migrate` runs this, too, before it creates the tables. So this is never an error, and tables that our migration
    would create are `migrate --check`'s to report.
    """
    store = _store()
    if store is None or not databases:
        return []
    try:
        store.check()
    except EffectOnceError as error:
        if isinstance(error, SchemaMissing) and not any(map(_is_migrated, databases)):
            return []
        hint = None
        if isinstance(error, SchemaMissing):
            hint = "If it is a database of this project, run manage.py migrate; else run the command above."
        return [Warning(f"The store cannot be used: {error}", hint=hint, id="effectonce.W003")]
    return []


def _is_migrated(alias: str) -> bool:
    """Tell whether the first migration of this app has been applied to a database."""
    return ("effectonce", "0001_initial") in MigrationRecorder(connections[alias]).applied_migrations()


def _store() -> Store | None:
    """Return the project's store; None where the settings are wrong, which is E001 or E002."""
    try:
        return get_store()
    except EffectOnceError:
        return None


def _position_of_middleware() -> int | None:
    """Return where IdempotencyMiddleware, or a subclass, stands in MIDDLEWARE."""
    for position, path in enumerate(settings.MIDDLEWARE):
        try:
            middleware = import_string(path)
        except Exception:  # Django reports it itself
            continue
        if isinstance(middleware, type) and issubclass(middleware, IdempotencyMiddleware):
            return position
    return None


def _guard_of(view: Any) -> Idempotency | None:
    """Return the guard of a decorated view, or of a view class with `IdempotentView`."""
    for holder in (view, getattr(view, "view_class", None), getattr(view, "cls", None)):  # `cls` is REST framework's
        guard = getattr(holder, "idempotency", None)
        if isinstance(guard, Idempotency):
            return guard
    return None


def _is_guarded_by_middleware(guard: Idempotency) -> bool:
    """Tell whether the middleware claims the same key as ``guard``. With ROUTES alone the path decides: not known."""
    try:
        setting = read_options()
        if _position_of_middleware() is None or setting["DEFAULT"] is None:
            return False
        return guard.scope == setting["SERVICE"] and guard.guard.store is get_store()
    except EffectOnceError:
        return False


def _atomic_databases(view: Any) -> set[str]:
    """Return the databases on which ATOMIC_REQUESTS opens a transaction around ``view``."""
    without = getattr(view, "_non_atomic_requests", ())
    databases = connections.settings.items()
    return {alias for alias, database in databases if database["ATOMIC_REQUESTS"] and alias not in without}


def _views(resolver: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every view below ``resolver`` with its route."""
    patterns: Sequence[Any] = resolver.url_patterns
    for pattern in patterns:
        route = f"{prefix}{pattern.pattern}"
        if hasattr(pattern, "url_patterns"):
            yield from _views(pattern, route)
        else:
            yield route, pattern.callback
