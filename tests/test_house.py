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
CHECKER = ROOT.parents[1] / "lint" / "src" / "effectonce_lint"

VALUES = "errors values* message record keys"
SEAMS = f"{VALUES} contracts*"
TOOLS = "store broker guard* inbox* outbox* relay* intents* sagas* worker* dead_letters*"
SQL_FILES = "core.sql_files"  # of core, the one module that backends import: tools and backends both have SQL files
COMMON = f"backends.common* backends.common.tls {SQL_FILES}"
AWS_SDK = "backends.common.aws_sdk"

#: part: (what of ours it may import, beside itself; what of others, beside the standard library).
#: A part is one module, or all that a pattern matches. sqlite3 counts as a driver.
TABLE = {
    # values: plain data, no I/O
    "errors": ("", ""),
    "values*": ("errors", "msgspec"),
    "message": ("", "msgspec"),
    "record": ("errors values*", "msgspec"),
    "keys": ("errors values*", ""),
    # every seam
    "contracts*": (f"{VALUES}", "msgspec"),
    # the algorithms, over injected ports
    "core.sql_files": (f"{VALUES}", ""),
    "core*": (f"{SEAMS}", "msgspec cryptography"),
    # what backends share
    "backends.common.tls": (f"{VALUES}", "msgspec"),
    "backends.common.aws_sdk": (f"{VALUES} backends.common.tls", "msgspec botocore"),
    "backends.common*": (f"{SEAMS}", "msgspec"),
    # the backends: one technology each, with its one driver, none beside another
    "backends": ("", ""),
    "backends.memory*": (f"{SEAMS} {COMMON}", "msgspec"),
    "backends.sqlite*": (f"{SEAMS} {COMMON}", "msgspec sqlite3"),
    "backends.redis*": (f"{SEAMS} {COMMON}", "msgspec redis hiredis"),
    "backends.postgres*": (f"{SEAMS} {COMMON}", "msgspec psycopg psycopg_pool"),
    "backends.mysql*": (f"{SEAMS} {COMMON}", "msgspec pymysql aiomysql"),
    "backends.dynamodb*": (f"{SEAMS} {COMMON} {AWS_SDK}", "msgspec boto3 botocore aiobotocore"),
    "backends.rabbitmq*": (f"{SEAMS} {COMMON}", "msgspec pamqp"),
    "backends.kafka*": (f"{SEAMS} {COMMON}", "msgspec confluent_kafka"),
    "backends.nats*": (f"{SEAMS} {COMMON}", "msgspec nats nkeys"),
    "backends.sqs*": (f"{SEAMS} {COMMON} {AWS_SDK}", "msgspec botocore aiobotocore"),
    "backends.servicebus*": (f"{SEAMS} {COMMON}", "msgspec azure"),
    "backends.pubsub*": (f"{SEAMS} {COMMON}", "msgspec google grpc"),
    # the connection of the caller, of every driver
    "sessions*": (f"{SEAMS}", "sqlite3 psycopg asyncpg pymysql aiomysql sqlalchemy django"),
    # messages as bytes
    "envelopes*": (f"{SEAMS} core*", "msgspec"),
    # outside APIs, as data
    "providers*": ("errors values*", "msgspec"),
    # the handles that users hold
    "store": (f"{SEAMS} core*", ""),
    "broker": (f"{SEAMS} core* envelopes*", ""),
    # the tools
    "guard*": (f"{SEAMS} core* store", "msgspec"),
    "inbox*": (f"{SEAMS} core* {SQL_FILES} sessions* store guard*", "msgspec"),
    "outbox*": (f"{SEAMS} core* {SQL_FILES} sessions*", "msgspec"),
    "relay*": (f"{SEAMS} core* envelopes* store broker outbox*", "msgspec"),
    "sagas*": (f"{SEAMS} core* providers* store guard*", "msgspec"),
    "intents*": (f"{SEAMS} core* sessions* providers* store guard*", "msgspec"),
    "worker*": (f"{SEAMS} core* sessions* store broker guard* inbox*", "msgspec"),
    "dead_letters*": (f"{SEAMS} core* broker guard* worker*", "msgspec"),
    "public": (f"{SEAMS} core* envelopes* {TOOLS}", ""),
    "__init__": ("errors public", ""),
    # what stands around them
    "babelqueue*": (f"{SEAMS} core* {COMMON} backends.redis* envelopes* {TOOLS}", "msgspec"),
    "http.*": (f"{SEAMS} core* {TOOLS}", "msgspec http_sf"),
    "http.client*": (f"{SEAMS} core* providers* {TOOLS} http.*", "msgspec httpx anyio requests urllib3"),
    "http": ("http.*", ""),
    "integrations": ("", ""),
    "integrations.fastapi": (f"{SEAMS} sessions* core* {TOOLS} http.*", "fastapi starlette"),
    "integrations.flask": (f"{SEAMS} sessions* core* {TOOLS} http.*", "flask werkzeug"),
    "integrations.django*": (f"{SEAMS} sessions* core* {TOOLS} http.*", "django asgiref"),
    "integrations.django.schema_operation": (f"{VALUES} {SQL_FILES}", "django"),
    "integrations.django.migrations*": ("integrations.django.schema_operation", "django"),
    "integrations.aws_lambda": (f"{SEAMS} core* {TOOLS}", "msgspec"),
    "integrations.webhooks": (f"{VALUES}", "msgspec"),
    "integrations.celery": (f"{SEAMS} core* {TOOLS}", "celery"),
    "integrations.dramatiq": (f"{SEAMS} core* {TOOLS}", "dramatiq"),
    "integrations.faststream": (f"{SEAMS} core* {TOOLS}", "faststream"),
    "integrations.taskiq": (f"{SEAMS} core* {TOOLS}", "taskiq"),
    "agents*": (f"{SEAMS} core* {TOOLS}", ""),
    "testing*": (f"{SEAMS} core* sessions* {TOOLS} backends.memory*", "pytest msgspec"),
    "testing.strategies": (f"{VALUES}", "msgspec hypothesis"),
    # what keeps a promise from being kept, found out
    "doctor*": (f"{SEAMS} core* {TOOLS}", "msgspec"),
    "telemetry*": (f"{SEAMS} core* {TOOLS}", "msgspec prometheus_client opentelemetry"),
    # what people see: the terminal, for the command line and the demo; records, for the command line and the pages
    "display.redaction": (f"{VALUES}", ""),
    "display.suggestions": ("", ""),
    "display.terminal": (f"{VALUES}", ""),
    "display*": (f"{SEAMS} core* {TOOLS} telemetry*", "msgspec"),
    "integrations.django.admin": (f"{SEAMS} core* {TOOLS} telemetry* display* integrations.django*", "django"),
    # one search for all that is known about a key
    "search*": (f"{SEAMS} core* {TOOLS} display*", "msgspec"),
    # pages for the engineer on call
    "dashboard*": (f"{SEAMS} core* {TOOLS} http.* doctor* telemetry* display* search*", "msgspec starlette jinja2"),
    # the checker, a distribution of its own, which knows nothing of ours
    "effectonce_lint*": ("", "msgspec tree_sitter tree_sitter_python yaml"),
    "demo*": (f"{SEAMS} core* {TOOLS} display.redaction display.suggestions display.terminal", "msgspec sqlite3"),
    "cli*": (
        f"{SEAMS} core* envelopes* {TOOLS} http.* testing* telemetry* doctor* display* display.redaction "
        "display.suggestions display.terminal search* dashboard* demo* effectonce_lint* __init__",
        "msgspec typer rich sqlite3 uvicorn watchfiles",
    ),
    "integrations.django.management*": (f"{VALUES} cli* integrations.django*", "django"),
    "__main__": ("cli*", ""),
}

#: Upward all the same, inside a function: a handle on a store loads the backend that it was asked for, and a worker
#: that serves metrics loads their endpoints. The core asks for OpenTelemetry's current trace, in programs that have
#: imported OpenTelemetry.
LAZY = {
    ("store", "backends.redis.store"),
    ("broker", "backends.redis.broker"),
    ("store", "backends.postgres.store"),
    ("worker.worker", "telemetry.endpoints"),
    ("relay.relay", "telemetry.endpoints"),
    ("core.tracing", "telemetry.trace_context"),
}

PUBLIC = [
    "Ack",
    "AttemptsExhausted",
    "Block",
    "Broker",
    "BrokerUnavailable",
    "ConfigurationError",
    "CorruptRecord",
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
    "Poison",
    "PostgresStore",
    "Record",
    "Redeliver",
    "RedisBroker",
    "RedisStore",
    "Reentered",
    "Reject",
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
    "SyncAsyncMismatch",
    "TransactionConflict",
    "Undecodable",
    "UnknownScheme",
    "UnknownType",
    "UnsafeStore",
    "Worker",
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
    """Every module of the package, by its name inside it; a package goes by its own name, ours by "__init__".

    Those of the checker go by their full names.
    """
    files = {}
    for root, top in ((ROOT, ROOT), (CHECKER, CHECKER.parent)):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(top).with_suffix("").parts
            files[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return files


@cache
def modules() -> dict[str, ast.Module]:
    """Every module, parsed; not while the tests are collected, which every test process does."""
    return {name: ast.parse(path.read_text(), str(path)) for name, path in module_files().items()}


def is_checker(name: str) -> bool:
    return name.partition(".")[0] == "effectonce_lint"


def part_of(module: str) -> str | None:
    """The row of ``module``: its own, else the longest pattern that matches it."""
    fitting = [part for part in TABLE if part == module or ("*" in part and fnmatchcase(module, part))]
    return max(fitting, key=len, default=None)


def imports(module: str) -> Iterator[tuple[str, bool, int]]:
    """What ``module`` imports, anywhere in it: full name, whether inside a function, line."""
    package = [*(() if is_checker(module) else ("effectonce",)), *module.split(".")]
    if not (CHECKER.parent if is_checker(module) else ROOT.parent).joinpath(*package).is_dir():
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


def test_a_backend_knows_no_other_backend_and_no_tool() -> None:
    """Of the table itself, so that a careless row cannot allow it."""
    owners: dict[str, str] = {}
    for part, (ours, others) in TABLE.items():
        layer, _, name = part.rstrip("*").partition(".")
        if layer == "backends" and name:
            assert set(ours.split()) <= {*SEAMS.split(), *COMMON.split(), AWS_SDK}, part
            for driver in set(others.split()) - {"msgspec", "botocore", "aiobotocore"}:
                assert owners.setdefault(driver, name) == name, f"{driver} has two owners"


def test_no_tool_knows_a_backend() -> None:
    assert [part for part in TOOLS.split() if "backends" in TABLE[part][0]] == []


def may_import(module: str, imported: str, lazy: bool) -> bool:
    """Whether the row of ``module`` allows it to import ``imported``."""
    part = part_of(module)
    assert part is not None, f"{module} has no row"
    ours, others = (set(column.split()) for column in TABLE[part])
    top, _, inner = imported.partition(".")
    if top in ("effectonce", "effectonce_lint"):
        target = part_of(imported if is_checker(imported) else inner or "__init__")
        return target == part or target in ours or (lazy and (module, inner) in LAZY)
    return top in others or (top in sys.stdlib_module_names and top != "sqlite3")


def test_each_module_imports_what_its_row_allows() -> None:
    wrong = [
        f"{module}, line {line}: {name}"
        for module in modules()
        for name, lazy, line in imports(module)
        if not may_import(module, name, lazy)
    ]
    assert wrong == []


def test_the_exceptions_are_still_needed() -> None:
    seen = {(m, name.removeprefix("effectonce.")) for m in modules() for name, lazy, _ in imports(m) if lazy}
    assert seen >= LAZY


def test_only_the_loader_loads_modules_by_name() -> None:
    """What `import_module` loads is not seen above. Each loads modules of its own package, when they are asked for."""
    callers = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name | ast.alias)
        and getattr(node, "attr", getattr(node, "id", getattr(node, "name", ""))) in ("import_module", "__import__")
    }
    assert callers == {"core.backend_urls", "sessions.registry", "cli.app", "cli.loading", "__init__"}


def test_the_page_about_the_layout_names_all_that_is_there() -> None:
    page = (ROOT.parents[1] / "docs/internals/layout.md").read_text()
    there = {module.partition(".")[0] for module in modules()} - {"__init__", "__main__"}
    assert sorted(there - set(re.findall(r"\w+", page))) == []


def test_the_walks_name_files_and_functions_that_are_there() -> None:
    page = (ROOT.parents[1] / "docs/internals/life-of-a-message.md").read_text()
    rows = re.findall(r"^\|[^|]+\|([^|]+)\|", page, re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        names = [name for name in re.findall(r"`([^`]+)`", row) if name != "connect="]
        files = [name for name in names if name.endswith((".py", "/"))]
        paths = [path for name in files for path in ROOT.glob(name)]
        assert [name for name in files if not any(ROOT.glob(name))] == []
        source = "".join(path.read_text() for path in paths if path.is_file())
        for name in set(names) - set(files):
            assert re.search(rf"\b(?:def|class) {name.rpartition('.')[2]}\b", source), f"{name} is not in {files}"


@cache
def class_members() -> dict[str, tuple[set[str], set[str]]]:
    """By the name of a class: the names that it defines, its attributes of `self` too, and the names of its bases."""
    members: dict[str, tuple[set[str], set[str]]] = {}
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names, bases = members.setdefault(node.name, (set(), set()))
                bases |= {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        names.add(inner.name)
                    elif isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        names.add(inner.id if isinstance(inner, ast.Name) else inner.attr)
    return members


def has_member(owner: str, name: str) -> bool:
    names, bases = class_members()[owner]
    return name in names or any(base in class_members() and has_member(base, name) for base in bases)


def test_a_method_that_a_text_names_is_there() -> None:
    missing = [
        f"{module}: {owner}.{name}"
        for module, path in module_files().items()
        for owner, name in re.findall(r"(?<!`)`([A-Z]\w+)\.(\w+)(?:\(\))?`(?!`)", path.read_text())
        if owner in class_members() and not has_member(owner, name)
    ]
    assert missing == []


# -- what is public


def test_the_public_names_are_these() -> None:
    assert sorted(effectonce.__all__) == PUBLIC
    assert [name for name in PUBLIC if getattr(effectonce, name) is not getattr(public, name)] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_is(name: str) -> None:
    value = getattr(effectonce, name)
    if isinstance(value, str):  # a constant's stands below it, where only the source has it
        assert f'\n{name}: Final = "{value}"\n"""' in (ROOT / "guard/once.py").read_text()
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
    assert functions.isdisjoint(module for module in modules() if "." not in module)


# -- what is never there


def test_importing_effectonce_imports_no_driver() -> None:
    code = "import sys; before = set(sys.modules); import effectonce.public; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign - {"typing_extensions"} == {"effectonce", "msgspec"}  # msgspec takes the third where it is there
    assert not {name for name in loaded if name.startswith(("effectonce.backends.", "effectonce.sessions."))} - {
        # They know drivers by name only.
        *(f"effectonce.sessions.{module}" for module in ("base_session", "pending", "registry", "sql_errors")),
    }
    slow = {"sqlite3", "importlib.metadata", "importlib.resources", "urllib.parse", "http", "email", "multiprocessing"}
    assert loaded.isdisjoint(slow)


CODE_FROM_DATA = {"pickle", "marshal", "shelve", "dbm", "dill", "cloudpickle", "jsonpickle", "eval", "exec", "compile"}


def test_nothing_turns_stored_data_into_code() -> None:
    """F60: a poisoned row is an error, never code."""
    used = []
    for module, tree in modules().items():
        tops = {name.partition(".")[0] for name, _, _ in imports(module)}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used += [f"{module}: {name}" for name in CODE_FROM_DATA & (tops | names)]
    assert used == []


def test_no_pin_refuses_an_early_python_3_11() -> None:
    """Pinned on a newer one, such a package would leave Debian 12, which has Python 3.11.2, without `make test`."""
    pins = (Path(__file__).parents[1] / "constraints.txt").read_text()
    for package in distributions():
        if f"\n{package.name}==" in pins:
            wanted = package.metadata.get("Requires-Python", "")
            assert "3.11.0" in SpecifierSet(wanted), f"{package.name} wants Python {wanted}: bound it in pyproject.toml"
