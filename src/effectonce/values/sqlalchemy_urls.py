"""URLs of SQLAlchemy, which name a driver: ``postgresql+asyncpg://…``. `translate` makes URLs of effectonce of them.

A program that has one for its own tables gives it to effectonce as it is. Options that concern only that driver are
left out; all others keep their meaning. What remains unknown is refused like any unknown option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import parse_qsl, urlencode

Options = list[tuple[str, str]]

_POSTGRES_DRIVERS: Final = ("asyncpg", "pg8000", "psycopg", "psycopg2", "psycopg2cffi", "psycopg_async")
_MYSQL_DRIVERS: Final = (
    *("aiomysql", "asyncmy", "cymysql", "mariadbconnector", "mysqlconnector", "mysqldb", "pymysql"),
)
_SQLITE_DRIVERS: Final = ("aiosqlite", "pysqlite")

#: Options of drivers that make no difference to effectonce: how they cache statements, encode, and convert values.
_DRIVERS_OWN: Final = {
    *("async_fallback", "max_cacheable_statement_size", "max_cached_statement_lifetime", "prepare_threshold"),
    *("prepared_statement_cache_size", "prepared_statement_name_func", "statement_cache_size", "client_encoding"),
    *("autocommit", "binary_prefix", "charset", "collation", "local_infile", "use_unicode", "write_timeout"),
    *("cached_statements", "check_same_thread", "detect_types", "isolation_level"),
}
_YES: Final = ("1", "true", "yes", "on")


def translate(url: str) -> str:
    """Translate ``url`` if it is a URL of SQLAlchemy with a driver for a database that can be a store; else return it
    as it is."""
    scheme, separator, rest = url.partition("://")
    database, _, driver = scheme.partition("+")
    drivers, convert = _DATABASES.get(database, ((), None))
    if not separator or convert is None or driver not in drivers:
        return url
    location, _, query = rest.partition("?")
    options = convert([(name, value) for name, value in parse_qsl(query, True) if name not in _DRIVERS_OWN], driver)
    return f"{database}://{location}" + (f"?{urlencode(options)}" if options else "")


def _postgres(options: Options, driver: str) -> Options:
    if driver == "asyncpg":
        names = {"ssl": "sslmode", "timeout": "connect_timeout", "command_timeout": "timeout"}
        options = [(names.get(name, name), value) for name, value in options]
    hosts = [value for name, value in options if name == "host"]
    if len(hosts) < 2 and not any(":" in host and not host.startswith(("/", "[")) for host in hosts):
        return options
    # One option for each host, as in host=h1:5432&host=h2:5433. libpq has a list of hosts and one of ports.
    pairs = [host.rpartition(":") if ":" in host else (host, "", "") for host in hosts]
    rest = [(name, value) for name, value in options if name not in ("host", "port")]
    ports = [port for _, _, port in pairs] if any(port for _, _, port in pairs) else []
    return [*rest, ("host", ",".join(host for host, _, _ in pairs)), *([("port", ",".join(ports))] if ports else [])]


def _mysql(options: Options, driver: str) -> Options:
    translated: dict[str, str] = {}
    for name, value in options:
        is_yes = value.lower() in _YES
        match name:
            case "unix_socket":
                translated["socket"] = value
            case "read_timeout":
                translated["timeout"] = value
            case "ssl_ca" | "ssl_cert" | "ssl_key":
                translated |= {"tls": "yes", f"{name.removeprefix('ssl_')}_file": value}
            case "ssl" | "ssl_disabled":
                translated["tls"] = "yes" if is_yes == (name == "ssl") else "no"
            case "ssl_check_hostname" | "ssl_verify_identity":
                translated |= {} if is_yes else {"verify": "ca"}
            case "ssl_verify_cert":
                translated |= {} if is_yes else {"verify": "no"}
            case "ssl_mode":
                translated |= _MYSQL_SSL_MODES.get(value.upper(), {name: value})
            case _:
                translated[name] = value
    return list(translated.items())


_MYSQL_SSL_MODES: Final = {
    "DISABLED": {"tls": "no"},
    "PREFERRED": {},
    "REQUIRED": {"tls": "yes", "verify": "no"},
    "VERIFY_CA": {"tls": "yes", "verify": "ca"},
    "VERIFY_IDENTITY": {"tls": "yes"},
}


def _unchanged(options: Options, driver: str) -> Options:
    return options


_DATABASES: Final[dict[str, tuple[Iterable[str], Callable[[Options, str], Options]]]] = {
    "mariadb": (_MYSQL_DRIVERS, _mysql),
    "mysql": (_MYSQL_DRIVERS, _mysql),
    "postgresql": (_POSTGRES_DRIVERS, _postgres),
    "sqlite": (_SQLITE_DRIVERS, _unchanged),
}
