"""Error handling, recognised by its syntax: logging, retry loops, responses that report a failure."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from effectonce_lint.python.values import Value
from effectonce_lint.word_lists import word_set

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call

_LOG_METHODS = word_set("debug info warning warn error exception critical log msg bind trace success notice fatal")
_LOGGERS = word_set("logger log logging console structlog")
_METRIC_METHODS = word_set(
    "inc observe labels increment set_tag set_attribute record_exception capture_exception add_event set_status gauge"
    " histogram timing incr_metric put_metric add_metric capture_message"
)
_LIBRARIES = word_set(
    "sentry_sdk prometheus_client opentelemetry statsd datadog ddtrace newrelic structlog logging loguru warnings"
    " traceback time rich aws_xray_sdk elasticapm"
)
_REPORTING_CALLS = (
    _LOG_METHODS
    | _METRIC_METHODS
    | word_set(
        "print print_exc print_exception format_exc sleep rollback close ack basic_ack delete_message delete commit"
        " xack complete_message add_note acknowledge flush write incr increment counter"
    )
)
"""The calls of an ``except`` block that only reports the error."""
_FAILURE_NAMES = ("HTTP_4", "HTTP_5", "HttpResponseServerError", "HttpResponseBadRequest", "abort", "INTERNAL_SERVER")


def is_log(call: Call) -> bool:
    """Whether a call only logs, counts or traces, which is harmless when repeated."""
    base, _, last = call.target.text.rpartition(".")
    packages = {call.ref.partition(".")[0], call.receiver.ref.partition(".")[0]}
    if packages & _LIBRARIES or last in _METRIC_METHODS:
        return True
    return last in _LOG_METHODS and base.rpartition(".")[2].lower().strip("_") in _LOGGERS


def is_retry_loop(node: ast.For | ast.AsyncFor | ast.While, subject: Value) -> bool:
    """Whether a loop retries the same work: it counts attempts, with a ``try`` inside."""
    if subject.tag == "retrying":
        return True
    tries = [statement for statement in node.body if isinstance(statement, ast.Try)]
    if not tries or (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
        return False
    if isinstance(node, ast.While):
        tested = {child.id for child in ast.walk(node.test) if isinstance(child, ast.Name)}
        counters = [child.target for child in ast.walk(node) if isinstance(child, ast.AugAssign)]
        return any(isinstance(counter, ast.Name) and counter.id in tested for counter in counters)
    if not isinstance(node.iter, ast.Call) or _last_name(node.iter.func) not in ("range", "count"):
        return False
    is_named_attempt = isinstance(node.target, ast.Name) and node.target.id.startswith(("attempt", "retry", "try", "_"))
    ends_early = any(isinstance(child, ast.Break | ast.Return) for block in tries for child in ast.walk(block))
    return is_named_attempt or ends_early


def only_reports(body: list[ast.stmt]) -> bool:
    """Whether an ``except`` block does nothing about the error: it logs, counts, acks, rolls back, and continues."""
    for node in body:
        match node:
            case ast.Pass() | ast.Continue() | ast.AugAssign():
                continue
            case ast.Return(value=None) | ast.Return(value=ast.Constant() | ast.Dict() | ast.Tuple() | ast.List()):
                continue
            case ast.Return(value=ast.Call(func=ast.Name() | ast.Attribute())):
                continue  # a response of the web framework; `returns_failure` decides whether it is a failure
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Expr(value=ast.Call() | ast.Await()):
                call = node.value.value if isinstance(node.value, ast.Await) else node.value
                if isinstance(call, ast.Call) and _last_name(call.func) in _REPORTING_CALLS:
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
    """Whether an ``except`` block reports the failure: by a status of 4xx or 5xx, or by ending the loop."""
    for node in body:
        for child in ast.walk(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, int) and not isinstance(child.value, bool):
                if 400 <= child.value <= 599:
                    return True
            elif isinstance(child, ast.Attribute | ast.Name):
                name = child.attr if isinstance(child, ast.Attribute) else child.id
                if name.startswith(_FAILURE_NAMES):
                    return True
            elif isinstance(child, ast.Break):
                return True
    return False


def returns_false(body: list[ast.stmt]) -> bool:
    """Whether an ``except`` block returns False to its caller."""
    return any(
        isinstance(child, ast.Return) and isinstance(child.value, ast.Constant) and child.value.value is False
        for node in body
        for child in ast.walk(node)
    )
