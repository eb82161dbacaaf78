"""The dashboard and the alerts name metrics that exist, with the labels that they have; and miss none that matters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from effectonce.contracts import Event
from effectonce.telemetry.prometheus import ALERT_KINDS as COUNTED_FROM_ZERO

from .scrape import exposed

DEPLOY = Path(__file__).parents[2] / "deploy"
WORD = re.compile(r"\b(effectonce_[a-z_]+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
#: Of a metric that has these parts in its text format.
SUFFIX = re.compile(r"_(bucket|sum|count|total)$")
#: What must wake somebody up: there must be an alert on each.
ALARMING = {
    "effectonce_records", "effectonce_dead_letters", "effectonce_outcomes", "effectonce_outbox_messages",
    "effectonce_outbox_oldest_seconds", "effectonce_sweep_age_seconds", "effectonce_outbox_clean_age_seconds",
    "effectonce_up", "effectonce_ready", "effectonce_claim_seconds",
}  # fmt: skip
ALARMING_KINDS = {"fenced", "lease_lost", "unrecorded", "unprotected"}


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana" / "effectonce.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    dashboard = json.loads((DEPLOY / "grafana" / "effectonce.json").read_text())
    yield from (
        variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"
    )


@pytest.mark.parametrize("expression", list(expressions()))
def test_it_names_metrics_and_labels_that_exist(expression: str) -> None:
    known = exposed()
    words = WORD.findall(expression)
    assert words
    labels: set[str] = set()
    for name, matchers in words:
        base = name if name in known else SUFFIX.sub("", name)
        assert base in known, name
        kind, given = known[base]
        suffix = name.removeprefix(base)
        assert suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}[kind], (
            name
        )
        labels |= given | ({"le"} if kind == "histogram" else set())
        for matcher in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers):
            assert matcher in given, f"{name} has no label {matcher}"
    for group in GROUPED.findall(expression):
        assert {label.strip() for label in group.split(",")} <= labels


@pytest.mark.parametrize("expression", list(expressions()))
def test_the_kinds_that_it_asks_for_are_events(expression: str) -> None:
    kinds = set(str(Event.__annotations__["kind"]).replace('"', "'").split("'")[1::2])
    for text in re.findall(r'kind=~?"([^"]*)"', expression):
        assert set(text.split("|")) <= kinds


def test_every_metric_is_on_the_dashboard_and_what_is_alarming_has_an_alert() -> None:
    shown = {
        SUFFIX.sub("", name) for panel in panels() for t in panel["targets"] for name, _ in WORD.findall(t["expr"])
    }
    assert shown == set(exposed())
    alarmed = {SUFFIX.sub("", name) for rule in alerts() for name, _ in WORD.findall(rule["expr"])}
    assert alarmed >= ALARMING
    text = " ".join(rule["expr"] for rule in alerts())
    assert all(kind in text for kind in ALARMING_KINDS)


def test_an_alert_on_an_increase_looks_at_what_is_counted_from_zero() -> None:
    """Otherwise the first event, which may be the only one, is not an increase."""
    for expression in (rule["expr"] for rule in alerts() if "increase(" in rule["expr"]):
        (kinds,) = re.findall(r'kind=~?"([^"]*)"', expression)
        assert set(kinds.split("|")) <= set(COUNTED_FROM_ZERO)


def test_a_single_figure_adds_stores_up_and_counts_each_once() -> None:
    """Every process of one store exposes the same gauge; and two stores in doubt are more than one."""
    for panel in panels():
        if panel["type"] == "stat":
            (expression,) = (target["expr"] for target in panel["targets"])
            assert expression.startswith(("sum(max by (", "count(max by ("))


def test_every_alert_says_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert len(rule["annotations"]["summary"]) < 120
        assert len(rule["annotations"]["description"]) > 30


def test_no_two_panels_share_a_place() -> None:
    taken = [tuple(panel["gridPos"].values()) for panel in panels()]
    assert len(set(taken)) == len(taken)
