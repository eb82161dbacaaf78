"""Checks one Python file: finds its consumers, traces each, and runs the rules on the trace."""

from __future__ import annotations

import re
import sys

from effectonce_lint.findings import Finding, Place

from .checks import check_consumer
from .consumer_trace import trace_consumer
from .consumers import ConsumerScanner
from .modules import Module
from .project import Project

_RECURSION_LIMIT = 6000
"""Python's own recursion limit while a tree is walked: a long chain of `a + b + c` is as deep as it is long."""

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
    """Whether a file mentions anything that a consumer needs. If not, it need not be parsed."""
    return any(word in content for word in _CONSUMER_WORDS) or _CONSUMER_SHAPES.search(content) is not None


def check_module(project: Project, module: Module) -> list[Finding]:
    """All findings of the consumers that ``module`` defines or registers."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        scanner = ConsumerScanner(project, module)
        findings: list[Finding] = []
        for consumer in scanner.scan():
            try:
                findings += check_consumer(consumer, trace_consumer(project, consumer), scanner.settings)
            except RecursionError:
                continue  # the other consumers are checked all the same
    except RecursionError:
        return []
    finally:
        sys.setrecursionlimit(limit)
    return _deduplicate(findings)


def _deduplicate(findings: list[Finding]) -> list[Finding]:
    """One finding for each rule and place, though two consumers may lead there."""
    first: dict[tuple[str, Place], Finding] = {}
    for finding in findings:
        first.setdefault((finding.rule, finding.place), finding)
    return sorted(first.values(), key=lambda finding: (*finding.place.start, finding.rule))
