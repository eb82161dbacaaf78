"""The setting ``EFFECTONCE``, and the store that it names."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connections
from django.utils.module_loading import import_string

from effectonce.errors import ConfigurationError, show
from effectonce.http import protocol
from effectonce.http.routes import Route
from effectonce.store import Store, connect

DEFAULT_SERVICE: Final = "http"
DEFAULTS: Final = {
    "PRINCIPAL": None,
    "DEFAULT": Route(),
    "ROUTES": None,
    "SERVICE": DEFAULT_SERVICE,
    "DOCS": protocol.DRAFT_URL,
    "AUDIT": None,
}

#: The OPTIONS of a PostgreSQL database that the store's connections take over.
_POSTGRES_OPTIONS: Final = (
    "application_name",
    "channel_binding",
    "gssencmode",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "load_balance_hosts",
    "options",
    "passfile",
    "require_auth",
    "service",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
)


def read_options() -> dict[str, Any]:
    """Return the setting with its defaults, and with what its dotted paths name. Raises `ConfigurationError`.

    ``STORE`` stays as it is written: `get_store` opens it.
    """
    setting = getattr(settings, "EFFECTONCE", None)
    if not isinstance(setting, dict) or not {"STORE"} <= setting.keys() <= {"STORE", *DEFAULTS}:
        raise ConfigurationError(
            f"the setting EFFECTONCE must be a dict with STORE, and may also have {', '.join(DEFAULTS)}"
        )
    options = {**DEFAULTS, **setting}
    for name in ("PRINCIPAL", "ROUTES"):
        options[name] = _import_path(name, options[name])
    return options


def get_store() -> Store:
    """Return the store that ``EFFECTONCE["STORE"]`` names. All callers of a process share it.

    The setting is a `Store`, the dotted path of one, a URL, or the alias of a database in ``DATABASES``, to which the
    store then opens connections of its own. Raises `ConfigurationError` where it is none of these.
    """
    url = store_url()
    if url is not None:
        return _connect(url)
    value = _import_path("STORE", read_options()["STORE"])
    if not isinstance(value, Store):
        raise ConfigurationError(
            f"EFFECTONCE['STORE'] is of type {type(value).__name__}; give a URL, the alias of a database, or a Store"
        )
    return value


def store_url() -> str | None:
    """Return the URL of the store that the setting names; None where it names a `Store`."""
    value = read_options()["STORE"]
    if isinstance(value, str) and value in connections.settings:
        return database_url(value)
    return value if isinstance(value, str) and "://" in value else None


_stores: dict[str, Store] = {}
_connecting = threading.Lock()


def _connect(url: str) -> Store:
    """Return the store at ``url``, the same one to every thread."""
    with _connecting:
        if url not in _stores:
            _stores[url] = connect(url)
        return _stores[url]


def _import_path(name: str, value: Any) -> Any:
    """Import what a dotted path names; return any other value as it is."""
    if not isinstance(value, str) or "." not in value or "://" in value:
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ConfigurationError(f"EFFECTONCE['{name}']: {show(value)!r} cannot be imported: {error}") from error


# -- a database of Django's, as a URL


def database_url(alias: str) -> str:
    """Return the URL of the database ``alias``, for a store beside Django's tables.

    Raises `ConfigurationError` for an engine that no store supports, and for SQLite in memory, which every connection
    has for itself.
    """
    connection = connections[alias]
    build = {"sqlite": _sqlite_url, "postgresql": _postgres_url, "mysql": _mysql_url}.get(connection.vendor)
    if build is None:
        raise ConfigurationError(
            f"the database {alias!r} is {connection.vendor}, which cannot be a store: set EFFECTONCE['STORE'] to a URL"
        )
    return build(alias, connection.settings_dict)


def _sqlite_url(alias: str, database: Mapping[str, Any]) -> str:
    name = os.fspath(database["NAME"] or "")
    if name in ("", ":memory:") or name.startswith("file:"):
        raise ConfigurationError(
            f"the database {alias!r} is SQLite in memory or at a URI, which the store cannot open a second time. Give "
            "EFFECTONCE['STORE'] a URL: sqlite:///file.db, or memory:// in tests"
        )
    return f"sqlite:///{quote(os.path.abspath(name))}"


def _postgres_url(alias: str, database: Mapping[str, Any]) -> str:
    options = dict(database["OPTIONS"])
    if "service" not in options and not database["NAME"]:
        raise ConfigurationError(f"the database {alias!r} has no NAME: give EFFECTONCE['STORE'] a URL, postgresql://…")
    query = {name: str(options[name]) for name in _POSTGRES_OPTIONS if name in options}
    if database["HOST"].startswith("/"):
        query["host"] = database["HOST"]  # the folder of a Unix socket
    return _server_url("postgresql", database, query)


def _mysql_url(alias: str, database: Mapping[str, Any]) -> str:
    options = dict(database["OPTIONS"])
    if "read_default_file" in options:
        raise ConfigurationError(
            f"the database {alias!r} is named by an option file: give EFFECTONCE['STORE'] its URL, mysql://…"
        )
    query = {}
    if socket := options.get("unix_socket") or (database["HOST"] if database["HOST"].startswith("/") else ""):
        query["socket"] = str(socket)
    if tls := options.get("ssl"):
        query["tls"] = "yes"
        files = tls if isinstance(tls, dict) else {}
        query |= {f"{name}_file": str(files[name]) for name in ("ca", "cert", "key") if name in files}
    return _server_url("mysql", database, query)


def _server_url(scheme: str, database: Mapping[str, Any], query: Mapping[str, str]) -> str:
    user = quote(str(database["USER"]), safe="")
    if database["PASSWORD"]:
        user += ":" + quote(str(database["PASSWORD"]), safe="")
    host = "" if database["HOST"].startswith("/") else str(database["HOST"])
    host = f"[{host}]" if ":" in host else host
    port = f":{database['PORT']}" if database["PORT"] and host else ""
    at = "@" if user else ""
    url = f"{scheme}://{user}{at}{host}{port}/{quote(str(database['NAME']), safe='')}"
    return f"{url}?{urlencode(query)}" if query else url
