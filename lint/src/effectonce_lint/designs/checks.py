"""The rules about designs: P11, EO101, EO106, EO201, EO301, EO302 and EO501 to EO503."""

from __future__ import annotations

from effectonce_lint.durations import format_duration, parse_duration
from effectonce_lint.findings import Finding, Label, Place
from effectonce_lint.rules import RULES

from . import model
from .model import DescribedConsumer, DescribedQueue, Design, Phrase

_MAX_LABELS = 4
_MAX_QUOTE_LENGTH = 60

#: How to guard an effect, by the mode that fits it.
_GUARD_HELP = {
    "T": "say that the consumer claims in the same transaction (eo.Inbox), and publishes through an outbox",
    "K": "say which idempotency key goes to the provider, and that the call is logged first (eo.Intents)",
    "I": "say that the call is logged before it is made, at most once (eo.Intents)",
    "L": "say what claims the message before the work (@eo.once)",
}


def check(design: Design) -> list[Finding]:
    """Apply the rules to everything that ``design`` describes."""
    findings: list[Finding] = []
    for consumer in design.consumers:
        findings += _check_consumer(consumer)
    for queue in design.queues:
        findings += _check_queue(queue)
    for setting in design.early_acks:
        findings.append(
            _make_finding(
                "EO201",
                setting.at,
                setting.owner,
                f"{setting.name}: {setting.owner} acks before its work is done, so a crash loses the message",
                help="ack when the work is done",
            )
        )
    for setting in design.short_retentions:
        findings.append(
            _make_finding(
                "EO106",
                setting.at,
                setting.owner,
                setting.name,
                help="keep it longer than retries, visibility timeout, dead-letter queue and redrive together",
            )
        )
    for table in design.tables:
        findings.append(
            _make_finding(
                "EO101",
                table.at,
                table.name,
                f"nothing keeps `{table.key}` of the table `{table.name}` unique: two deliveries can both be recorded "
                "as the first",
                help=f"a primary key or unique index on ({table.key}), with the consumer if several share the table",
                mode="T",
            )
        )
    return findings


def _make_finding(
    rule: str,
    at: Place,
    symbol: str,
    message: str,
    *,
    labels: tuple[Label, ...] = (),
    help: str = "",
    mode: str = "",
    sure: bool = True,
) -> Finding:
    severity = RULES[rule].severity if sure else "warning"
    return Finding(
        rule=rule, severity=severity, place=at, message=message, symbol=symbol, labels=labels, help=help, mode=mode
    )


def _check_consumer(consumer: DescribedConsumer) -> list[Finding]:
    findings: list[Finding] = []
    doubling = [effect for effect in consumer.effects if model.doubles_when_repeated(effect.text)]
    has_dedup = consumer.dedup is not None and not model.says_none(consumer.dedup.text)
    from_queue = f" from `{consumer.queue}`" if consumer.queue else ""
    labels = tuple(
        Label(effect.at, f"`{_shorten(effect.text)}` would happen twice")
        for effect in doubling[:_MAX_LABELS]
        if effect.at != consumer.at
    )
    if not has_dedup and doubling:
        effect = doubling[0].text
        mode = model.mode_for(effect)
        findings.append(
            _make_finding(
                "P11",
                consumer.at,
                consumer.name,
                f"consumer `{consumer.name}` does `{_shorten(effect)}` again whenever a message{from_queue} is "
                "delivered again: no dedup is described",
                labels=labels,
                help=_GUARD_HELP[mode],
                mode=mode,
            )
        )
    elif not has_dedup and not consumer.effects and _should_name_effects(consumer):
        findings.append(
            _make_finding(
                "P11",
                consumer.at,
                consumer.name,
                f"consumer `{consumer.name}`{from_queue} is not judged: its effects are unknown",
                help="describe how it handles a duplicate: x-idempotency with key, store and retention"
                if consumer.can_declare_dedup
                else "say what it does with a message, and how it handles a duplicate",
                mode="L",
                sure=False,
            )
        )
    if has_dedup and consumer.dedup is not None and (doubling or not consumer.effects):
        findings += _check_guard(consumer, consumer.dedup)
    if consumer.key is not None:
        findings += _check_key(consumer, consumer.key)
    if consumer.ack is not None and model.acks_early(consumer.ack.text):
        findings.append(
            _make_finding(
                "EO201",
                consumer.ack.at,
                consumer.name,
                f"consumer `{consumer.name}` acks before its work is done ({_shorten(consumer.ack.text)}), so a crash "
                "loses the message",
                help="ack when the work is done",
            )
        )
    findings += _check_retention(consumer)
    return findings


def _should_name_effects(consumer: DescribedConsumer) -> bool:
    """Whether a consumer has a place for its effects, and receives something: a service around consumers does not."""
    return consumer.can_declare_dedup or (consumer.names_effects and bool(consumer.queue))


def _check_guard(consumer: DescribedConsumer, guard: Phrase) -> list[Finding]:
    if model.relies_on_broker_only(guard.text):
        return [
            _make_finding(
                "EO503",
                guard.at,
                consumer.name,
                f"consumer `{consumer.name}` relies on the broker's own dedup (`{_shorten(guard.text)}`), which does "
                "not cover a redelivery",
                help="dedup in the consumer as well",
                mode="L",
            )
        ]
    if model.is_check_then_act(guard.text):
        return [
            _make_finding(
                "EO101",
                guard.at,
                consumer.name,
                f"consumer `{consumer.name}` looks first and records later (`{_shorten(guard.text)}`): two deliveries "
                "can both pass",
                help="claim in one atomic step: a unique insert, SET NX",
                mode="T",
            )
        ]
    return _check_key(consumer, guard)


def _check_key(consumer: DescribedConsumer, key: Phrase) -> list[Finding]:
    if unstable_part := model.unstable_key_in(key.text):
        return [
            _make_finding(
                "EO301",
                key.at,
                consumer.name,
                f"the dedup key of `{consumer.name}` is `{unstable_part}`, which a redelivery, a resend or a redrive "
                "changes",
                help="take the producer's message id, or a business key",
            )
        ]
    if model.is_content_key(key.text):
        return [
            _make_finding(
                "EO302",
                key.at,
                consumer.name,
                f"the dedup key of `{consumer.name}` is a hash of the payload alone: two honest identical requests "
                "count as one",
                help="put the producer's message id into the key",
            )
        ]
    return []


def _check_retention(consumer: DescribedConsumer) -> list[Finding]:
    if consumer.retention is None or consumer.window is None:
        return []
    retention, window = parse_duration(consumer.retention.text), parse_duration(consumer.window.text)
    if retention is None or window is None or retention >= window:
        return []
    return [
        _make_finding(
            "EO106",
            consumer.retention.at,
            consumer.name,
            f"consumer `{consumer.name}` remembers messages for {format_duration(retention)}, but they can come back "
            f"for {format_duration(window)}",
            labels=(Label(consumer.window.at, "so long"),),
            help="keep the record longer than the message can live",
            mode="L",
        )
    ]


def _check_queue(queue: DescribedQueue) -> list[Finding]:
    findings: list[Finding] = []
    if queue.is_dead_letter or not queue.consumers:
        return findings
    for consumer in queue.consumers:
        if consumer.timeout is not None and queue.visibility is not None and queue.visibility < consumer.timeout:
            findings.append(
                _make_finding(
                    "EO501",
                    queue.visibility_at or queue.at,
                    queue.name,
                    f"queue `{queue.name}` delivers again after {format_duration(queue.visibility)}, "
                    f"while `{consumer.name}` may run for {format_duration(consumer.timeout)}",
                    labels=(Label(consumer.at, "still running then"),),
                    help="visibility timeout above the consumer's timeout; AWS asks for six times",
                    mode="L",
                )
            )
            break
    if not queue.has_dead_letter_queue:
        findings.append(
            _make_finding(
                "EO502",
                queue.at,
                queue.name,
                f"queue `{queue.name}` of `{queue.consumers[0].name}` has no dead-letter queue: a message that always "
                "fails comes back until it is dropped",
                help="a redrive policy with a dead-letter queue",
            )
        )
    if queue.content_dedup_at is not None:
        findings.append(
            _make_finding(
                "EO302",
                queue.content_dedup_at,
                queue.name,
                f"queue `{queue.name}` drops a message whose content equals another's of the last five minutes: two "
                "honest identical requests count as one",
                help="send a MessageDeduplicationId made from the producer's message id",
            )
        )
    return findings


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_QUOTE_LENGTH else text[: _MAX_QUOTE_LENGTH - 3] + "..."
