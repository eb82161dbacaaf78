"""What decorators add to a function, and small readings of syntax that several rules share."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from effectonce.lint.python.values import Op, Val

from . import guards
from .words import words

if TYPE_CHECKING:
    from effectonce.lint.python.calls import Call, Calls

_RETRIES = frozenset(
    {
        "tenacity.retry",
        "backoff.on_exception",
        "backoff.on_predicate",
        "stamina.retry",
        "retrying.retry",
        "retry.retry",
        "opnieuw.retry",
        "riprova.retry",
    }
)
_TRANSACTIONS = ("atomic", "transactional", "in_transaction", "db_transaction", "with_transaction")
_LOGS = words("debug info warning warn error exception critical log msg bind trace success notice fatal")
_LOGGERS = words(
    "logger log logging LOG LOGGER _logger _log self.logger self.log structlog app.logger current_app.logger console"
)
_METRICS = words(
    "inc observe labels increment set_tag set_attribute record_exception capture_exception add_event set_status gauge"
    " histogram timing incr_metric put_metric add_metric capture_message"
)
_METRIC_LIBRARIES = (
    "sentry_sdk",
    "prometheus_client",
    "opentelemetry",
    "statsd",
    "datadog",
    "ddtrace",
    "newrelic",
    "structlog",
    "logging",
    "loguru",
    "warnings",
    "traceback",
    "time",
    "rich",
    "aws_xray_sdk",
    "elasticapm",
)


@dataclass(slots=True)
class Layer:
    """One decorator: a guard, a transaction, a retry, a wrapper of the project's own, or nothing that matters."""

    kind: str = ""
    guard: Op | None = None
    value: Val | None = None


def of(walk: Calls, decorator: ast.expr) -> Layer:
    """What ``decorator`` adds."""
    target = walk.value(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if guard := guards.decorator(walk, decorator, target):
        return Layer("guard", guard)
    if target.ref in _RETRIES or target.ref.rpartition(".")[2] in (
        "on_exception",
        "retry_with_backoff",
        "retry_on_exception",
    ):
        return Layer("retry")
    name = target.attr or target.ref.rpartition(".")[2]
    if name in _TRANSACTIONS and (target.ref.startswith("django.") or target.tag == "tx" or target.function is None):
        return Layer("tx")
    if target.function is not None:
        value = walk.value(decorator) if isinstance(decorator, ast.Call) else target
        if value.function is not None:
            return Layer("wrap", value=value)
    return Layer()


def is_log(call: Call) -> bool:
    """Logging, metrics and tracing: nobody minds them twice."""
    text = call.target.text
    base, _, last = text.rpartition(".")
    if call.ref.partition(".")[0] in _METRIC_LIBRARIES or call.receiver.ref.partition(".")[0] in _METRIC_LIBRARIES:
        return True
    if last in _LOGS and (
        base in _LOGGERS or base.rpartition(".")[2].lower().lstrip("_") in ("logger", "log", "logging")
    ):
        return True
    if base.startswith(("logging.", "structlog.", "logger", "log.", "self.logger", "self._logger")):
        return True
    return last in _METRICS or call.ref in ("builtins.print",)


def is_retry_loop(node: ast.For | ast.AsyncFor | ast.While, subject: Val) -> bool:
    """A loop that tries the same thing again: over a range of attempts, around a try."""
    if subject.tag == "retrying":
        return True
    tries = [each for each in node.body if isinstance(each, ast.Try)]
    if not tries:
        return False
    if isinstance(node, ast.While):
        if isinstance(node.test, ast.Constant):
            return False
        counters = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
        return any(
            isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name) and each.target.id in counters
            for each in ast.walk(node)
        )
    call = node.iter
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute)):
        return False
    name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
    target = node.target.id if isinstance(node.target, ast.Name) else ""
    counted = name in ("range", "count") and (
        any(isinstance(each, ast.Break | ast.Return) for one in tries for each in ast.walk(one))
        or target.startswith(("attempt", "retry", "try", "_"))
    )
    return counted


_TELLS = (
    _LOGS
    | _METRICS
    | words(
        "print print_exc print_exception format_exc sleep rollback close ack basic_ack delete_message delete commit"
        " xack complete_message add_note acknowledge flush write incr increment counter"
    )
)
"""Calls of a handler that does nothing about the error."""


def only_tells(body: list[ast.stmt]) -> bool:
    """Whether a handler does nothing about an error: it logs, counts, acks, rolls back, and goes on."""
    for node in body:
        match node:
            case ast.Pass() | ast.Continue() | ast.AugAssign():
                continue
            case ast.Return(value=None) | ast.Return(value=ast.Constant() | ast.Dict() | ast.Tuple() | ast.List()):
                continue
            case ast.Return(value=ast.Call(func=ast.Name() | ast.Attribute())):
                continue  # a response of the web framework; whether it is a failure is asked elsewhere
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Expr(value=ast.Call() | ast.Await()):
                call = node.value.value if isinstance(node.value, ast.Await) else node.value
                if isinstance(call, ast.Call) and _last(call.func) in _TELLS:
                    continue
                return False
            case ast.If():
                if only_tells(node.body) and only_tells(node.orelse):
                    continue
                return False
            case ast.With() | ast.AsyncWith():
                if only_tells(node.body):
                    continue
                return False
            case _:
                return False
    return True


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def returns_failure(body: list[ast.stmt]) -> bool:
    """Whether a handler answers that it went wrong: a status of 4xx or 5xx, False, the end of the loop."""
    for node in body:
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, int) and not isinstance(each.value, bool):
                if 400 <= each.value <= 599:
                    return True
            elif isinstance(each, ast.Attribute | ast.Name):
                name = each.attr if isinstance(each, ast.Attribute) else each.id
                if name.startswith(
                    (
                        "HTTP_4",
                        "HTTP_5",
                        "HttpResponseServerError",
                        "HttpResponseBadRequest",
                        "abort",
                        "INTERNAL_SERVER",
                    )
                ):
                    return True
            elif (
                isinstance(each, ast.Return) and isinstance(each.value, ast.Constant) and each.value.value is False
            ) or isinstance(each, ast.Break):
                return True
    return False
