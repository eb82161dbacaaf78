"""Error handling, recognised by its syntax: logging, retry loops, answers that report a failure."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call

_LOGS = word_set("debug info warning warn error exception critical log msg bind trace success notice fatal")
_LOGGERS = word_set("logger log logging console structlog")
_METRICS = word_set(
    "inc observe labels increment set_tag set_attribute record_exception capture_exception add_event set_status gauge"
    " histogram timing incr_metric put_metric add_metric capture_message"
)
_LIBRARIES = word_set(
    "sentry_sdk prometheus_client opentelemetry statsd datadog ddtrace newrelic structlog logging loguru warnings"
    " traceback time rich aws_xray_sdk elasticapm"
)
_TELLS = (
    _LOGS
    | _METRICS
    | word_set(
        "print print_exc print_exception format_exc sleep rollback close ack basic_ack delete_message delete commit"
        " xack complete_message add_note acknowledge flush write incr increment counter"
    )
)
"""Calls of a handler that does nothing about the error."""
_FAILURES = ("HTTP_4", "HTTP_5", "HttpResponseServerError", "HttpResponseBadRequest", "abort", "INTERNAL_SERVER")


def is_log(call: Call) -> bool:
    """Whether a call only logs, counts or traces, which is harmless when repeated."""
    base, _, last = call.target.text.rpartition(".")
    tops = {call.ref.partition(".")[0], call.receiver.ref.partition(".")[0]}
    if tops & _LIBRARIES or last in _METRICS:
        return True
    return last in _LOGS and base.rpartition(".")[2].lower().strip("_") in _LOGGERS


def is_retry_loop(node: ast.For | ast.AsyncFor | ast.While, subject: Value) -> bool:
    """A loop that tries the same thing again: over a number of attempts, around a try."""
    if subject.tag == "retrying":
        return True
    tries = [each for each in node.body if isinstance(each, ast.Try)]
    if not tries or (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
        return False
    if isinstance(node, ast.While):
        counters = {each.id for each in ast.walk(node.test) if isinstance(each, ast.Name)}
        counted = [each.target for each in ast.walk(node) if isinstance(each, ast.AugAssign)]
        return any(isinstance(each, ast.Name) and each.id in counters for each in counted)
    if not isinstance(node.iter, ast.Call) or _last_name(node.iter.func) not in ("range", "count"):
        return False
    named = isinstance(node.target, ast.Name) and node.target.id.startswith(("attempt", "retry", "try", "_"))
    return named or any(isinstance(each, ast.Break | ast.Return) for one in tries for each in ast.walk(one))


def only_reports(body: list[ast.stmt]) -> bool:
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
                if isinstance(call, ast.Call) and _last_name(call.func) in _TELLS:
                    continue
                return False
            case ast.If():
                if only_reports(node.body) and only_reports(node.orelse):
                    continue
                return False
            case ast.With() | ast.AsyncWith():
                if only_reports(node.body):
                    continue
                return False
            case _:
                return False
    return True


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def returns_failure(body: list[ast.stmt]) -> bool:
    """Whether a handler answers that it went wrong: a status of 4xx or 5xx, the end of the loop."""
    for node in body:
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, int) and not isinstance(each.value, bool):
                if 400 <= each.value <= 599:
                    return True
            elif isinstance(each, ast.Attribute | ast.Name):
                name = each.attr if isinstance(each, ast.Attribute) else each.id
                if name.startswith(_FAILURES):
                    return True
            elif isinstance(each, ast.Break):
                return True
    return False


def returns_false(body: list[ast.stmt]) -> bool:
    """Whether an ``except`` block returns False to its caller."""
    return any(
        isinstance(each, ast.Return) and isinstance(each.value, ast.Constant) and each.value.value is False
        for node in body
        for each in ast.walk(node)
    )
