"""What holds the house up: who may import whom, which names are public, and what is never there.

`TABLE` is the architecture of the package. To add a module, find its row; to add a row, put it below all that it may
import.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import effectonce
from effectonce import public

ROOT = Path(effectonce.__file__).parent

VALUES = "errors durations urls names clocks bindings fingerprint identity keys message record outgoing"
TOOLS = "store broker policies handlers guard loops blocks inbox* worker* dlq leftovers intents* saga* outbox relay*"

#: part: (what of ours it may import, beside itself; what of others, beside the standard library).
#: A part is one module, or all that a pattern matches. sqlite3 counts as a driver.
TABLE = {
    # values: plain data, no I/O
    "errors": ("", ""),
    "durations": ("errors", ""),
    "urls": ("errors durations", ""),
    "names": ("errors", ""),
    "clocks": ("", ""),
    "bindings": ("", ""),
    "fingerprint": ("errors", "msgspec"),
    "identity": ("errors", ""),
    "keys": ("errors durations fingerprint identity", ""),
    "message": ("", "msgspec"),
    "record": ("errors", "msgspec"),
    "outgoing": ("errors", "msgspec"),
    "loading": ("errors urls", ""),
    "sqlfiles": ("errors", ""),
    # every seam, on one page
    "contracts": (f"{VALUES}", "msgspec"),
    # the algorithms, over injected ports
    "core*": (f"{VALUES} contracts", "msgspec cryptography"),
    # one driver each: opened, spoken to, its errors translated
    "connections": ("", ""),
    "connections.sqlite": (f"{VALUES} contracts", "sqlite3"),
    "connections.redis*": (f"{VALUES} contracts", "redis hiredis"),
    "connections.postgres*": (f"{VALUES} contracts", "psycopg psycopg_pool"),
    "connections.mysql": (f"{VALUES} contracts", "pymysql aiomysql"),
    "connections.dynamodb*": (f"{VALUES} contracts", "msgspec boto3 botocore aiobotocore"),
    "connections.amqp*": (f"{VALUES} contracts", "msgspec pamqp"),
    "connections.nats": (f"{VALUES} contracts", "msgspec nats"),
    # connections that stay the caller's own, of every driver
    "connections.callers*": (f"{VALUES} contracts", "sqlite3 psycopg asyncpg pymysql aiomysql django"),
    # the backends: each on its own connection, none beside another
    "stores": ("", ""),
    "stores.memory": (f"{VALUES} contracts", "msgspec"),
    "stores.sqlite*": (f"{VALUES} contracts connections.sqlite sqlfiles", "msgspec sqlite3"),
    "stores.redis*": (f"{VALUES} contracts connections.redis*", "msgspec"),
    "stores.postgres*": (f"{VALUES} contracts connections.postgres* sqlfiles", "msgspec"),
    "stores.mysql*": (f"{VALUES} contracts connections.mysql sqlfiles", "msgspec"),
    "stores.dynamodb*": (f"{VALUES} contracts connections.dynamodb*", "msgspec"),
    # brokers: as stores
    "brokers": ("", ""),
    "brokers.common": (f"{VALUES} contracts", ""),
    "brokers.memory": (f"{VALUES} contracts", "msgspec"),
    "brokers.sqlite": (f"{VALUES} contracts connections.sqlite sqlfiles brokers.common", "msgspec sqlite3"),
    "brokers.redis*": (f"{VALUES} contracts connections.redis* brokers.common", "msgspec"),
    "brokers.links": (f"{VALUES} contracts", ""),
    "brokers.rabbitmq*": (f"{VALUES} contracts connections.amqp* brokers.links", "msgspec"),
    "brokers.nats*": (f"{VALUES} contracts connections.nats brokers.links", "msgspec"),
    "brokers.kafka*": (f"{VALUES} contracts", "msgspec confluent_kafka"),
    "brokers.windowed": (f"{VALUES} contracts", "msgspec"),
    "brokers.sqs*": (f"{VALUES} contracts brokers.common brokers.windowed", "msgspec botocore aiobotocore"),
    "brokers.servicebus*": (f"{VALUES} contracts brokers.common brokers.windowed", "msgspec azure"),
    # messages as bytes
    "envelopes*": (f"{VALUES} contracts core*", "msgspec"),
    # outside APIs, as data
    "providers*": ("errors", "msgspec"),
    # the tools, and the names that users see
    "store": (f"{VALUES} contracts core* loading", ""),
    "broker": (f"{VALUES} contracts loading envelopes*", ""),
    "policies": (f"{VALUES}", ""),
    "audit": ("errors", "msgspec"),
    "handlers": (f"{VALUES}", ""),
    "guard": (f"{VALUES} contracts core* store policies handlers", "msgspec"),
    "loops": (f"{VALUES} contracts core* store policies handlers guard", "msgspec"),
    "blocks": (f"{VALUES} contracts core* store policies", ""),
    "leftovers": (f"{VALUES} store", ""),
    "saga*": (f"{VALUES} contracts core* providers* store handlers policies leftovers", "msgspec"),
    "inbox*": (f"{VALUES} sqlfiles contracts core* connections.callers* store policies handlers guard", "msgspec"),
    "worker*": (f"{VALUES} contracts core* connections.callers* store broker policies handlers inbox*", "msgspec"),
    "intents*": (
        f"{VALUES} contracts core* connections.callers* providers* store guard handlers policies leftovers",
        "msgspec",
    ),
    "dlq": (f"{VALUES} contracts core* broker handlers worker*", "msgspec"),
    "outbox": (f"{VALUES} sqlfiles contracts core* connections.callers*", "msgspec"),
    "relay*": (f"{VALUES} contracts core* envelopes* store broker outbox", "msgspec"),
    "public": (f"{VALUES} contracts core* envelopes* {TOOLS}", ""),
    "__init__": ("public", ""),
    # what stands on them
    "http.*": (f"{VALUES} contracts core* {TOOLS}", "msgspec http_sf"),
    "http.client*": (f"{VALUES} contracts core* providers* {TOOLS} http.*", "msgspec httpx anyio requests urllib3"),
    "http": ("http.*", ""),
    "integrations": ("", ""),
    "integrations.fastapi": (f"{VALUES} contracts core* {TOOLS} http.*", "fastapi starlette"),
    "integrations.flask": (f"{VALUES} contracts core* {TOOLS} http.*", "flask werkzeug"),
    "integrations.django*": (f"{VALUES} contracts core* {TOOLS} http.*", "django asgiref"),
    "integrations.aws_lambda": (f"{VALUES} contracts core* {TOOLS}", "msgspec"),
    "integrations.webhooks": (f"{VALUES}", "msgspec"),
    "integrations.agents": (f"{VALUES} contracts core* {TOOLS}", ""),
    "integrations.later": (f"{VALUES}", ""),
    "integrations.celery": (f"{VALUES} contracts core* {TOOLS} integrations.later", "celery"),
    "integrations.dramatiq": (f"{VALUES} contracts core* {TOOLS} integrations.later", "dramatiq"),
    "integrations.faststream": (f"{VALUES} contracts core* {TOOLS} integrations.later", "faststream"),
    "integrations.taskiq": (f"{VALUES} contracts core* {TOOLS} integrations.later", "taskiq"),
    "integrations.babelqueue": (f"{VALUES} contracts core* {TOOLS}", ""),
    "testing.explorer*": (f"{VALUES} contracts core* envelopes* providers* connections.callers* {TOOLS}", "msgspec"),
    "testing*": (f"{VALUES} contracts core* {TOOLS} testing.explorer*", "pytest msgspec"),
    "testing.strategies": (f"{VALUES}", "msgspec hypothesis"),
    # what keeps a promise from being kept, found out
    "doctor*": (f"{VALUES} contracts core* {TOOLS}", "msgspec"),
    "telemetry*": (f"{VALUES} contracts core* {TOOLS}", "msgspec prometheus_client opentelemetry"),
    # pages for whoever is on call
    "dashboard*": (f"{VALUES} contracts core* audit {TOOLS} doctor*", "msgspec starlette jinja2"),
    # the checker, which knows nothing of ours
    "lint*": ("", "msgspec yaml"),
    "cli*": (
        f"{VALUES} contracts core* loading audit {TOOLS} testing* doctor* dashboard* lint* __init__",
        "msgspec typer rich sqlite3 uvicorn",
    ),
    "__main__": ("cli*", ""),
}

#: Upward all the same, inside a function: a handle on a store loads the backend that it was asked for, and a worker
#: that is to be watched what answers for it.
LAZY = {
    ("store", "stores.redis"),
    ("store", "stores.postgres"),
    ("worker", "telemetry.endpoints"),
    ("relay", "telemetry.endpoints"),
}

PUBLIC = [
    "Ack",
    "Again",
    "AttemptsExhausted",
    "Block",
    "Broker",
    "BrokerUnavailable",
    "ConfigurationError",
    "CorruptRecord",
    "Dead",
    "DeadLetterQueue",
    "Done",
    "EffectOnceError",
    "Event",
    "ForgedMessage",
    "GLOBAL",
    "Guarded",
    "InDoubt",
    "InProgress",
    "Inbox",
    "Intent",
    "Intents",
    "InvalidKey",
    "InvalidOption",
    "KeyTooLong",
    "LeaseLost",
    "Message",
    "MissingDriver",
    "MissingKey",
    "MissingPrincipal",
    "NotAwaited",
    "NotExecuted",
    "NotInDoubt",
    "NotInTransaction",
    "Outbox",
    "Outcome",
    "OutcomeUnknown",
    "PayloadMismatch",
    "PayloadTooLarge",
    "PermanentFailure",
    "PostgresStore",
    "Record",
    "RedisStore",
    "Reentered",
    "Relay",
    "ResultNotStored",
    "Retry",
    "Retryable",
    "Run",
    "Saga",
    "SagaChanged",
    "SagaFailed",
    "SchemaMismatch",
    "SchemaMissing",
    "ScopeTaken",
    "Step",
    "Store",
    "StoreUnavailable",
    "TransactionConflict",
    "Undecodable",
    "UnknownScheme",
    "UnsafeStore",
    "Worker",
    "WrongColour",
    "block",
    "bypass_external_effects",
    "connect",
    "connect_broker",
    "current",
    "dispatcher",
    "keys",
    "once",
]


# -- who may import whom


@cache
def module_files() -> dict[str, Path]:
    """Every module of the package, by its name inside it; a package goes by its own name, ours by "__init__"."""
    files = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        files[name] = path
    return files


@cache
def modules() -> dict[str, ast.Module]:
    """Every module, parsed; not while the tests are collected, which every test process does."""
    return {name: ast.parse(path.read_text(), str(path)) for name, path in module_files().items()}


def part_of(module: str) -> str | None:
    """The row of ``module``: its own, else the longest pattern that matches it."""
    fitting = [part for part in TABLE if part == module or ("*" in part and fnmatchcase(module, part))]
    return max(fitting, key=len, default=None)


def imports(module: str) -> Iterator[tuple[str, bool, int]]:
    """What ``module`` imports, anywhere in it: full name, whether inside a function, line."""
    package = ["effectonce", *module.split(".")]
    if not ROOT.joinpath(*package[1:]).is_dir():
        package.pop()

    def visit(node: ast.AST, lazy: bool) -> Iterator[tuple[str, bool, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, lazy, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                source = ".".join([*base, child.module] if child.module else base)
                for alias in child.names:
                    name = f"{source}.{alias.name}"
                    is_module = name.removeprefix("effectonce.") in modules()
                    yield name if is_module else source, lazy, child.lineno
            else:
                yield from visit(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    return visit(modules()[module], False)


def test_every_module_has_its_row() -> None:
    assert [module for module in modules() if part_of(module) is None] == []
    assert [part for part in TABLE if part not in {part_of(module) for module in modules()}] == []


def test_the_table_goes_downward_only() -> None:
    rows = list(TABLE)
    for at, (part, (ours, _)) in enumerate(TABLE.items()):
        assert set(ours.split()) <= set(rows[:at]), f"{part!r} may import what stands below it"


def test_stores_and_connections_know_no_sibling_no_core_and_no_tool() -> None:
    """Of the table itself, so that a careless row cannot allow it."""
    owners: dict[str, str] = {}
    for part, (ours, others) in TABLE.items():
        layer, _, name = part.rstrip("*").partition(".")
        if layer in ("stores", "connections"):
            allowed = {*VALUES.split(), "contracts"}
            if layer == "stores":
                allowed.add("sqlfiles")
                allowed |= {each for each in TABLE if each.rstrip("*") == f"connections.{name}"}
            assert set(ours.split()) <= allowed, part
            for driver in set(others.split()) - {"msgspec"} if name != "callers" else ():
                assert owners.setdefault(driver, name) == name, f"{driver} has two owners"


@pytest.mark.parametrize("module", module_files())
def test_it_imports_what_its_row_allows(module: str) -> None:
    part = part_of(module)
    assert part is not None
    ours, others = (set(column.split()) for column in TABLE[part])
    wrong = []
    for name, lazy, line in imports(module):
        top, _, inner = name.partition(".")
        if top == "effectonce":
            target = part_of(inner or "__init__")
            fine = target == part or target in ours or (lazy and (module, inner) in LAZY)
        else:
            fine = top in others or (top in sys.stdlib_module_names and top != "sqlite3")
        if not fine:
            wrong.append(f"line {line}: {name}")
    assert wrong == []


def test_the_exceptions_are_still_needed() -> None:
    seen = {(m, name.removeprefix("effectonce.")) for m in modules() for name, lazy, _ in imports(m) if lazy}
    assert seen >= LAZY


def test_only_the_loader_loads_modules_by_name() -> None:
    """What `import_module` loads is not seen above. The package loads its own modules, when they are asked for."""
    callers = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and getattr(node, "attr", getattr(node, "id", getattr(node, "name", ""))) in ("import_module", "__import__")
    }
    assert callers == {"loading", "__init__"}


def test_the_page_about_the_layout_names_all_that_is_there() -> None:
    page = (ROOT.parents[1] / "docs/internals/layout.md").read_text()
    there = {module.partition(".")[0] for module in modules()} - {"__init__", "__main__"}
    assert sorted(there - set(re.findall(r"\w+", page))) == []


# -- what is public


def test_the_public_names_are_these() -> None:
    assert sorted(effectonce.__all__) == PUBLIC
    assert [name for name in PUBLIC if getattr(effectonce, name) is not getattr(public, name)] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_is(name: str) -> None:
    value = getattr(effectonce, name)
    if isinstance(value, str):  # a constant's stands below it, where only the source has it
        assert f'\n{name}: Final = "{value}"\n"""' in (ROOT / "guard.py").read_text()
        return
    own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    assert own
    assert not own.startswith(f"{name}("), "a signature that a class was given by itself says nothing"


def test_no_module_has_the_name_of_a_public_function() -> None:
    """``from effectonce import once`` must give the function, whatever was imported before."""
    functions = {name for name in PUBLIC if inspect.isfunction(getattr(effectonce, name))}
    assert functions == {
        "block", "bypass_external_effects", "connect", "connect_broker", "current", "dispatcher", "once",
    }  # fmt: skip
    assert functions.isdisjoint(module.rpartition(".")[2] for module in modules())


# -- what is never there


def test_importing_effectonce_imports_no_driver() -> None:
    code = "import sys; before = set(sys.modules); import effectonce.public; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign - {"typing_extensions"} == {"effectonce", "msgspec"}  # msgspec takes the third where it is there
    assert not {name for name in loaded if name.startswith(("effectonce.stores.", "effectonce.connections."))} - {
        f"effectonce.connections.callers{each}"
        for each in ("", ".base", ".errors")  # which know drivers by name only
    }
    slow = {"sqlite3", "importlib.metadata", "importlib.resources", "urllib.parse", "http", "email", "multiprocessing"}
    assert loaded.isdisjoint(slow)


CODE_FROM_DATA = {"pickle", "marshal", "shelve", "dbm", "dill", "cloudpickle", "jsonpickle", "eval", "exec", "compile"}


@pytest.mark.parametrize("module", module_files())
def test_nothing_turns_stored_data_into_code(module: str) -> None:
    """F60: a poisoned row is an error, never code."""
    tops = {name.partition(".")[0] for name, _, _ in imports(module)}
    names = {node.id for node in ast.walk(modules()[module]) if isinstance(node, ast.Name)}
    assert CODE_FROM_DATA.isdisjoint(tops | names)


def test_no_pin_refuses_an_early_python_3_11() -> None:
    """Pinned on a newer one, such a package would leave Debian 12, which has Python 3.11.2, without `make test`."""
    pins = (Path(__file__).parents[1] / "constraints.txt").read_text()
    for package in distributions():
        if f"\n{package.name}==" in pins:
            wanted = package.metadata.get("Requires-Python", "")
            assert "3.11.0" in SpecifierSet(wanted), f"{package.name} wants Python {wanted}: bound it in pyproject.toml"
