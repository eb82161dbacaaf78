"""Checks one Python file: finds its consumers, traces each, and runs the rules on the trace."""

from __future__ import annotations

import re
import sys

from effectonce_lint.findings import Finding

from .checks import check_consumer
from .consumer_trace import trace_consumer
from .consumers import ConsumerScanner
from .modules import Module
from .project import Project

_RECURSION_LIMIT = 6000
"""Python's own limit while a tree is walked: a long chain of `a + b + c` is as deep as it is long."""

_CONSUMER_WORDS = (
    b"celery dramatiq faststream taskiq procrastinate huey pika kombu kafka receive_message Records .records xread"
    b" brpop blpop blmove pubsub servicebus pulsar ebhook web_hook construct_event shared_task effectonce babelqueue"
    b" paho basic_consume compensat dempoten cloud_event event_handler azure.functions csrf_exempt powertools xack"
    b" delete_message complete_message enqueue WorkerSettings faust ConnectionListener"
    b" include_router register_blueprint"
).split()
_CONSUMER_SHAPES = re.compile(
    rb"@[\w.]+\.(?:task|actor|subscriber|handler|job|post|put|patch|route|api_route|on|subscribe|listen(?:er)?"
    rb"|consumer?)\b|@(?:post|api_view)\(|\bRoute\(|\bweb\.post\(|\bpath\([^\n]*(?:hook|callback|ipn|notif)|\[[\"']detail[\"']\]|\b(?:arq|rq|sqs|nats)\b"
    rb"|^class \w+\([^)]*(?:Task|Actor|View|Consumer|Worker|ConsumerMixin|Handler|Listener|Processor|Subscriber|Poller"
    rb"|Job)\b"
    rb"|\b\w*(?:Consumer|Worker|Listener|Subscriber|Poller|Receiver|Dispatcher|Bus)\w*\(|\back\(",
    re.MULTILINE,
)


def may_consume(content: bytes) -> bool:
    """Whether a file mentions anything that a consumer needs; if not, there is nothing in it to be found."""
    return any(word in content for word in _CONSUMER_WORDS) or _CONSUMER_SHAPES.search(content) is not None


def check_module(project: Project, module: Module) -> list[Finding]:
    """All findings of the consumers that ``module`` defines or registers."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        scanner = ConsumerScanner(project, module)
        findings: list[Finding] = []
        for consumer in scanner.scan():
            try:
                findings += check_consumer(consumer, trace_consumer(project, consumer), scanner.settings)
            except RecursionError:
                continue
    except RecursionError:
        return []
    finally:
        sys.setrecursionlimit(before)
    return _deduplicate(findings)


def _deduplicate(findings: list[Finding]) -> list[Finding]:
    """Without those that two consumers led to: the same rule at the same place."""
    out: dict[tuple[object, ...], Finding] = {}
    for each in findings:
        out.setdefault((each.rule, each.place), each)
    return sorted(out.values(), key=lambda each: (*each.place.at, each.rule))
