"""The pages of the reference that are read off the code: ``python -m tests.docs.reference`` writes them again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from operator import attrgetter
from pkgutil import iter_modules
from typing import Any

from msgspec import json, structs

import effectonce as eo
import effectonce.broker
import effectonce.http.client
import effectonce.store
from effectonce import errors, integrations
from effectonce.doctor import Limits
from effectonce.values.durations import span_text
from effectonce.values.urls import Address
from effectonce_lint.config import Config

from .pages import DOCS

REFERENCE = DOCS / "reference"


def errors_page() -> str:
    tree = re.findall(r"^    (.*)$", inspect.getdoc(errors) or "", re.MULTILINE)
    parts = [
        "# Errors, by code",
        "Every error has a stable code: alert on it. The message says what happened and what to do, and "
        "`effectonce explain CODE` prints the same. Do not ack a message that failed with a `Retryable` error: deliver "
        "it again later. All other errors need an operator or a fix.",
        "```text\n" + "\n".join(tree).rstrip() + "\n```",
    ]
    for name in errors.ERROR_NAMES:
        error = getattr(errors, name)
        if isinstance(error, type) and issubclass(error, Exception) and "code" in vars(error):
            parts += [f"## {error.code}", f"**`effectonce.{name}`.** {_plain(error)}"]
    return "\n\n".join(parts) + "\n"


def _plain(thing: type) -> str:
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("``", "`")


#: What has options with defaults, as it is called.
TOOLS = (
    "Store",
    "once",
    "block",
    "Inbox",
    "Outbox",
    "Relay",
    "Worker",
    "Worker.handler",
    "Retry",
    "Intents.operation",
    "Saga",
    "Saga.step",
    "http.Route",
    "http.client.Settings",
)

SETTINGS = """# Configuration

No configuration file is required. Code gets its settings in code; URLs may come from the environment; the command
line also reads `pyproject.toml`.

## The environment

| variable | what it sets |
|---|---|
| `EFFECTONCE_STORE` | the store of `eo.connect()` without a URL, and of every command |
| `EFFECTONCE_BROKER` | the broker of `eo.connect_broker()` without a URL, and of every command |
| `EFFECTONCE_AUDIT` | the file in which commands write down what they change |
| `EFFECTONCE_DASHBOARD_TOKEN`, `EFFECTONCE_DASHBOARD_VIEWER_TOKEN` | the dashboard's tokens for operators and viewers |
| `NO_COLOR` | no colours in a terminal |
| `PROMETHEUS_MULTIPROC_DIR` | metrics of several processes are served as one, as prometheus_client does it |

## pyproject.toml

An option comes before the environment, and that before the nearest `pyproject.toml`. The values of `doctor` and `lint`
are the defaults; spans may be written as `"10m"`."""


CONNECTIONS = """## TLS

These options are the same for every store and broker that is a server.

- `tls`: `yes` or `no`. `rediss://` and `amqps://` mean `yes`, and so does a Kafka URL with a login.
- `ca_file`: the authorities to trust, a PEM file; without it, those of the system.
- `cert_file` and `key_file`: this client's certificate and its private key, without a password. Leave out `key_file` if
  one file has both.
- `verify`: what is checked of the server's certificate. `yes`: its authority and its name. `ca`: only its authority.
  `no`: nothing, so that an attacker in between can read along.
- `server_name`: the name that the certificate must have, where you connect by another one, or by an address.

```text
rediss://cache.internal:6379/0?ca_file=/etc/ca.pem
postgresql://shop@db1,db2/shop?tls=yes&ca_file=/etc/ca.pem&cert_file=/etc/shop.crt&key_file=/etc/shop.key
amqps://shop:secret@10.0.0.7/orders?ca_file=/etc/ca.pem&server_name=mq.internal
```

A server whose certificate is not trusted, or is for another name, is a `ConfigurationError` that says which option to
add. It is never retried. So is a server that refuses your certificate, where it says so before it hangs up.

PostgreSQL also takes libpq's own `sslmode`, `sslrootcert`, `sslcert` and `sslkey`, but not together with `tls`. Without
either, libpq encrypts where the server offers it, and checks nothing. Kafka and AWS have no `server_name`.

## Passwords that expire

Pass a function instead of writing a password into the URL. It is called for each new connection, on a thread where the
connection is for async code. PostgreSQL and MySQL take it as the password, Kafka as the token of OAUTHBEARER.

```text
store = eo.connect("postgresql://shop@db.example/shop?tls=yes", password=new_iam_token)
broker = eo.connect_broker("kafka://kafka.example:9098", password=new_msk_token)
```

## URLs of SQLAlchemy

`eo.connect` takes the URL that your program has for its tables: `postgresql+asyncpg://`, `postgresql+psycopg://`,
`mysql+pymysql://`, `sqlite+aiosqlite://` and the like. Options that only concern that driver are left out; `ssl`,
`ssl_ca` and others become ours."""


#: Where a scheme does not take ``scheme://localhost``.
ADDRESSES = {
    "memory": "memory://",
    "sqlite": "sqlite:///shop.db",
    "redis+sentinel": "redis+sentinel://localhost/shop",
    "redis+unix": "redis+unix:///run/redis.sock",
    "postgresql": "postgresql://localhost/shop",
    "postgres": "postgres://localhost/shop",
    "mysql": "mysql://localhost/shop",
    "mariadb": "mariadb://localhost/shop",
    "dynamodb": "dynamodb://records?region=eu-west-1",
    "sqs": "sqs://?region=eu-west-1",
    "pubsub": "pubsub://my-project",
    "servicebus": "servicebus://name:key@shop.servicebus.windows.net",
}


def configuration_page() -> str:
    toml = [
        "[tool.effectonce]",
        'store = "sqlite:///shop.db"',
        'broker = "sqlite:///queue.db"',
        'audit = "audit.jsonl"',
        *_table("doctor", Limits),
        *_table("lint", Config),
    ]
    parts = [SETTINGS, "```toml\n" + "\n".join(toml) + "\n```"]
    parts += [
        "## Defaults",
        'The value of an option that you do not give. Durations are `"30s"`, `"7d"`, a `timedelta`, or seconds. What '
        "each option means is on the\nbuilt site (`make docs`), under [its name](api.md); in a clone that page has "
        "only the names, so ask `python -m pydoc effectonce.Worker`.",
        "\n".join(["| | |", "|---|---|", *(f"| `{name}` | {_defaults(name)} |" for name in TOOLS)]),
    ]
    parts.append(CONNECTIONS)
    for kind, schemes in (("stores", eo.store.SCHEMES), ("brokers", eo.broker.SCHEMES)):
        parts.append(f"## URLs of {kind}")
        for module, name in dict.fromkeys(schemes.values()):
            spelled = ", ".join(f"`{scheme}://`" for scheme, where in schemes.items() if where == (module, name))
            backend = getattr(import_module(f"effectonce.{module}"), name)
            scheme = next(scheme for scheme, where in schemes.items() if where == (module, name))
            parts += [f"**{spelled}**", _plain(backend)]
            if shown := ", ".join(_shown_numbers(option_defaults(scheme, backend))):
                parts.append(f"Defaults: {shown}.")
            own = _capabilities(scheme, backend)
            parts.append(f"[Capabilities](../internals/extend.md) that differ from the default: {own}.")
    parts.append(
        "An unknown option is an error that lists the known ones. In a user name, a password or a path, percent-encode "
        "special characters."
    )
    return "\n\n".join(parts) + "\n"


def option_defaults(scheme: str, backend: Callable[[Address], object]) -> dict[str, Any]:
    """Return the options of a URL that ``backend`` reads, with their defaults."""
    defaults: dict[str, Any] = {}

    class Recorder(Address):
        def take(self, name: str, convert: Any, default: Any) -> Any:
            defaults[name] = default
            return super().take(name, convert, default)

    backend(Recorder(ADDRESSES.get(scheme, f"{scheme}://localhost")))
    return defaults


def _capabilities(scheme: str, backend: Callable[[Address], Any]) -> str:
    capabilities = backend(Address(ADDRESSES.get(scheme, f"{scheme}://localhost"))).capabilities
    values = structs.asdict(capabilities)
    return ", ".join(
        f"`{field.name}={values[field.name]!r}`".replace("'", '"')
        for field in structs.fields(capabilities)
        if values[field.name] != field.default
    )


def _shown_numbers(defaults: dict[str, Any]) -> Iterator[str]:
    for option, value in defaults.items():
        if type(value) is float:
            yield f"`{option}={span_text(round(value * 1e6))}`"
        elif type(value) is int and value >= 0:  # a negative one leaves it to the broker
            yield f"`{option}={value}`"


def _table(name: str, settings: Any) -> list[str]:
    """The defaults of a struct as a table of ``[tool.effectonce]``, with what its source says about each."""
    comments = {field: f"  # {said}" for said, field in re.findall(r"#: (.+)\n +(\w+):", inspect.getsource(settings))}
    values = zip(settings.__struct_encode_fields__, structs.asdict(settings()).items(), strict=True)
    written = [f"{as_} = {json.encode(value).decode()}{comments.get(field, '')}" for as_, (field, value) in values]
    return ["", f"[tool.effectonce.{name}]", *written]


def _defaults(name: str) -> str:
    given = inspect.signature(attrgetter(name)(eo)).parameters.values()
    shown = [f"`{each.name}={each.default!r}`" for each in given if each.default not in (each.empty, ..., Any)]
    return ", ".join(shown).replace("'", '"')


#: The public names by what they are for; all of them, which a test checks.
TOPICS: dict[str, tuple[str, ...]] = {
    "The guard": ("connect", "once", "block", "current", "Guarded", "Block", "Outcome", "Run", "GLOBAL"),
    "Stores and records": ("Store", "RedisStore", "PostgresStore", "Record", "Event"),
    "Transactional": ("Inbox", "Outbox", "Relay"),
    "Messages and workers": (
        "Message",
        "connect_broker",
        "Broker",
        "RedisBroker",
        "Worker",
        "Retry",
        "DeadLetterQueue",
        "bypass_external_effects",
    ),
    "Loops of your own": ("dispatcher", "Ack", "Redeliver", "Reject"),
    "Intents and sagas": ("Intents", "Intent", "Saga", "Step", "Done"),
}


#: What is imported from a module of its own.
BESIDE: dict[str, tuple[str, ...]] = {
    "Keys": ("keys.composite", "keys.content_hash", "keys.time_window", "keys.broker_made"),
    "Envelopes": ("envelopes.CloudEvents", "babelqueue.BabelQueue", "envelopes.Raw", "envelopes.Signed"),
    "HTTP": (
        "http.Route",
        "http.asgi.IdempotencyMiddleware",
        "http.wsgi.IdempotencyMiddleware",
        "http.client.for_httpx.IdempotentTransport",
        "http.client.for_httpx.AsyncIdempotentTransport",
        "http.client.for_requests.IdempotentAdapter",
        "http.client.Settings",
        "http.client.IntentLog",
    ),
    "Frameworks": (
        "integrations.fastapi.Idempotency",
        "integrations.flask.idempotent",
        "integrations.django.IdempotencyMiddleware",
        "integrations.django.Idempotency",
        "integrations.django.IdempotentView",
        "integrations.django.transactional",
        "integrations.celery.guard_tasks",
        "integrations.celery.OnceTask",
        "integrations.dramatiq.Idempotency",
        "integrations.faststream.Idempotency",
        "integrations.faststream.unguarded",
        "integrations.taskiq.IdempotencyMiddleware",
        "integrations.aws_lambda.sqs_batch",
        "integrations.aws_lambda.lease_until_timeout",
        "integrations.webhooks.stripe",
        "integrations.webhooks.github",
        "agents.tool_once",
        "babelqueue.seen_set.seen_set",
    ),
    "Telemetry": (
        "telemetry.logging.EventLogger",
        "telemetry.prometheus.Metrics",
        "telemetry.opentelemetry.Tracing",
    ),
}


def api_page() -> str:
    parts = ["# The public names", "These are attributes of the package: `import effectonce as eo`."]
    parts += _listed(TOPICS)
    parts.append("Those that follow are imported from the module that their name begins with.")
    parts += [*_listed(BESIDE), "## For tests", "::: effectonce.testing"]
    return "\n\n".join(parts) + "\n"


def _listed(topics: dict[str, tuple[str, ...]]) -> list[str]:
    parts = []
    for topic, names in topics.items():
        parts += [f"## {topic}", *(f"::: effectonce.{name}" for name in names)]
    return parts


def undocumented() -> set[str]:
    """Public names that are neither in a topic nor an error, which has a page of its own; and integrations."""
    listed = {name for names in TOPICS.values() for name in names}
    names = {*eo.__all__} - listed - {*errors.ERROR_NAMES, "keys", "__version__"}
    modules = {module.name for module in iter_modules(integrations.__path__)}
    return names | (modules - {name.split(".")[1] for name in BESIDE["Frameworks"]})


PAGES = {"errors.md": errors_page, "api.md": api_page, "configuration.md": configuration_page}


def main() -> None:
    for name, written in PAGES.items():
        (REFERENCE / name).write_text(written())


if __name__ == "__main__":
    main()
