"""The rules about designs."""

from __future__ import annotations

from effectonce_lint.durations import format_duration, parse_duration
from effectonce_lint.findings import Finding, Label, Place
from effectonce_lint.rules import RULES

from . import model
from .model import DescribedConsumer, DescribedQueue, Design

_HELP = {
    "T": "say that the consumer claims in the same transaction (eo.Inbox), and publishes through an outbox",
    "K": "say which idempotency key goes to the provider, and that the call is logged first (eo.Intents)",
    "I": "say that the call is logged before it is made, at most once (eo.Intents)",
    "L": "say what claims the message before the work (@eo.once)",
}


def check(design: Design) -> list[Finding]:
    out: list[Finding] = []
    for consumer in design.consumers:
        out += _check_consumer(consumer)
    for queue in design.queues:
        out += _check_queue(queue)
    for setting in design.early_acks:
        out.append(
            _make_finding(
                "EO201",
                setting.at,
                setting.owner,
                f"{setting.name}: {setting.owner} acks before its work is done, so a crash loses the message",
                help="ack when the work is done",
            )
        )
    for setting in design.short:
        out.append(
            _make_finding(
                "EO106",
                setting.at,
                setting.owner,
                setting.name,
                help="keep it longer than retries, visibility timeout, dead-letter queue and redrive together",
            )
        )
    for table in design.tables:
        out.append(
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
    return out


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
    out: list[Finding] = []
    doubling = [effect for effect in consumer.effects if model.doubles_when_repeated(effect.text)]
    told = consumer.dedup is not None and not model.says_none(consumer.dedup.text)
    from_queue = f" from `{consumer.queue}`" if consumer.queue else ""
    labels = tuple(
        Label(effect.at, f"`{_shorten(effect.text)}` would happen twice")
        for effect in doubling[:4]
        if effect.at != consumer.at
    )
    if not told and doubling:
        effect = doubling[0].text
        mode = model.mode_for(effect)
        out.append(
            _make_finding(
                "P11",
                consumer.at,
                consumer.name,
                f"consumer `{consumer.name}` does `{_shorten(effect)}` again whenever a message{from_queue} is "
                "delivered again: no dedup is described",
                labels=labels,
                help=_HELP[mode],
                mode=mode,
            )
        )
    elif not told and consumer.silent and not consumer.effects:
        out.append(
            _make_finding(
                "P11",
                consumer.at,
                consumer.name,
                f"`{consumer.name}` receives{from_queue} and does not say how it handles a duplicate",
                help="describe it: x-idempotency with key, store and retention",
                mode="L",
                sure=False,
            )
        )
    if told and consumer.dedup is not None:
        out += _check_guard(consumer, consumer.dedup.text, consumer.dedup.at, bool(doubling) or not consumer.effects)
    if consumer.key is not None:
        out += _check_key(consumer, consumer.key.text, consumer.key.at)
    if consumer.ack is not None and model.acks_early(consumer.ack.text):
        out.append(
            _make_finding(
                "EO201",
                consumer.ack.at,
                consumer.name,
                f"consumer `{consumer.name}` acks before its work is done ({_shorten(consumer.ack.text)}), so a crash "
                "loses the message",
                help="ack when the work is done",
            )
        )
    out += _check_retention(consumer)
    return out


def _check_guard(consumer: DescribedConsumer, text: str, at: Place, matters: bool) -> list[Finding]:
    if not matters:
        return []
    if model.relies_on_broker_only(text):
        return [
            _make_finding(
                "EO503",
                at,
                consumer.name,
                f"consumer `{consumer.name}` relies on the broker's own dedup (`{_shorten(text)}`), which does not "
                "cover a redelivery",
                help="dedup in the consumer as well",
                mode="L",
            )
        ]
    if model.is_check_then_act(text):
        return [
            _make_finding(
                "EO101",
                at,
                consumer.name,
                f"consumer `{consumer.name}` looks first and records later (`{_shorten(text)}`): two deliveries can "
                "both pass",
                help="claim in one atomic step: a unique insert, SET NX",
                mode="T",
            )
        ]
    return _check_key(consumer, text, at)


def _check_key(consumer: DescribedConsumer, text: str, at: Place) -> list[Finding]:
    if what := model.unstable_key_in(text):
        return [
            _make_finding(
                "EO301",
                at,
                consumer.name,
                f"the dedup key of `{consumer.name}` is `{what}`, which a redelivery, a resend or a redrive changes",
                help="take the producer's message id, or a business key",
            )
        ]
    if model.is_content_key(text):
        return [
            _make_finding(
                "EO302",
                at,
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
    kept, needed = parse_duration(consumer.retention.text), parse_duration(consumer.window.text)
    if kept is None or needed is None or kept >= needed:
        return []
    return [
        _make_finding(
            "EO106",
            consumer.retention.at,
            consumer.name,
            f"consumer `{consumer.name}` remembers messages for {format_duration(kept)}, but they can come back for "
            f"{format_duration(needed)}",
            labels=(Label(consumer.window.at, "so long"),),
            help="keep the record longer than the message can live",
            mode="L",
        )
    ]


def _check_queue(queue: DescribedQueue) -> list[Finding]:
    out: list[Finding] = []
    if queue.is_dead_letter or not queue.consumers:
        return out
    for name, at, timeout in queue.consumers:
        if timeout is not None and queue.visibility is not None and queue.visibility < timeout:
            out.append(
                _make_finding(
                    "EO501",
                    queue.visibility_at or queue.at,
                    queue.name,
                    f"queue `{queue.name}` delivers again after {format_duration(queue.visibility)}, "
                    f"while `{name}` may run for {format_duration(timeout)}",
                    labels=(Label(at, "still running then"),),
                    help="visibility timeout above the consumer's timeout; AWS asks for six times",
                    mode="L",
                )
            )
            break
    if not queue.dead_letter and queue.known_dead_letter:
        who = queue.consumers[0][0]
        out.append(
            _make_finding(
                "EO502",
                queue.at,
                queue.name,
                f"queue `{queue.name}` of `{who}` has no dead-letter queue: a message that always fails comes back "
                "until it is dropped",
                help="a redrive policy with a dead-letter queue",
            )
        )
    if queue.content_dedup is not None:
        out.append(
            _make_finding(
                "EO302",
                queue.content_dedup,
                queue.name,
                f"queue `{queue.name}` drops a message whose content equals another's of the last five minutes: two "
                "honest identical requests count as one",
                help="send a MessageDeduplicationId made from the producer's message id",
            )
        )
    return out


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
