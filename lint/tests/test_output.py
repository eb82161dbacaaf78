"""How findings are printed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from .conftest import BAD, Lint
from .labels import CORPUS

SCHEMA = json.loads((Path(__file__).parent / "sarif.schema.json").read_text())


@pytest.fixture
def two_modules(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "gateway.py").write_text(
        "import stripe\n\n\ndef pay(amount):\n    return stripe.Charge.create(amount=amount)\n"
    )
    (folder / "shop" / "tasks.py").write_text(
        "from celery import shared_task\n\nfrom .gateway import pay\n\n\n"
        "@shared_task(acks_late=False)\ndef charge(payment_id, amount):\n    pay(amount)\n"
    )


def test_a_frame_shows_the_consumer_the_effect_and_the_way_between_them(lint: Lint, two_modules: None) -> None:
    done = lint("--select", "P11", "--no-cache")
    assert (
        done.out
        == """\
P11 the Celery task `charge` charges a card again whenever its message is delivered again (unguarded-effect)
 --> shop/tasks.py:7:5
  |
6 | @shared_task(acks_late=False)
7 | def charge(payment_id, amount):
  |     ^^^^^^ delivered at least once
  |
 ::: shop/gateway.py:5:12
  |
5 |     return stripe.Charge.create(amount=amount)
  |            ----------------------------------- charges a card
  |
  = path: charge -> pay -> stripe.Charge.create
  = help: pass idempotency_key made from the message's id; eo.Intents repeats it on every attempt (mode K, keyed call)

Found 1 problem in 1 of 2 files.
2 files, 1 consumer (celery 1), 1 handler judged, none skipped.
"""
    )


def test_carets_stand_below_what_they_mean_behind_tabs_and_wide_text(lint: Lint, folder: Path) -> None:
    (folder / "bad.py").write_text(
        "import stripe\nfrom celery import shared_task\n\n\n@shared_task\ndef charge(amount):\n"
        "\tif amount: 'é'; stripe.Charge.create(amount=amount)\n"
    )
    lines = lint("--select", "EO303", "--no-cache").out.splitlines()
    (code,) = (line for line in lines if line.startswith("7 | "))
    carets = lines[lines.index(code) + 1]
    assert code.index("stripe.Charge") == carets.index("^")
    assert carets.count("^") == len("stripe.Charge.create(amount=amount)")


def test_colours_are_for_terminals(lint: Lint, two_modules: None) -> None:
    assert "\x1b[" not in lint().out
    assert "\x1b[31;1mP11\x1b[0m" in lint("--color", "always").out
    assert "\x1b[" not in lint("--color", "always", "--output-format", "json").out


def test_concise_is_one_line_a_finding_as_editors_parse_it(lint: Lint, two_modules: None) -> None:
    lines = lint("--all", "--output-format", "concise").out.splitlines()
    assert lines[0] == "shop/gateway.py:5:12: EO303 Stripe takes an idempotency key, and this call has none"
    assert lines[1].startswith("shop/tasks.py:6:14: EO201 [*] acks_late=False: ")
    assert lines[-2] == "Found 3 problems in 2 of 2 files. 1 [*] fixable with --fix (--diff shows the changes)."


def test_json_holds_all_that_is_known(lint: Lint, two_modules: None) -> None:
    found = json.loads(lint("--all", "--output-format", "json").out)["findings"]
    (p11,) = (each for each in found if each["rule"] == "P11")
    assert p11["location"] == {"file": "shop/tasks.py", "line": 7, "column": 5, "end_line": 7, "end_column": 11}
    assert p11["path"] == ["charge", "pay", "stripe.Charge.create"]
    assert [each["location"]["file"] for each in p11["related"]] == ["shop/gateway.py"]
    assert (p11["name"], p11["severity"], p11["symbol"], p11["mode"]) == ("unguarded-effect", "error", "charge", "K")
    (ack,) = (each for each in found if each["rule"] == "EO201")
    assert ack["fix"]["edits"][0]["content"] == "True"
    assert json.loads(lint("--all", "--output-format", "json", "--select", "EO4").out)["findings"] == []


def validated(text: str) -> Any:
    document = json.loads(text)
    jsonschema.validate(document, SCHEMA, format_checker=jsonschema.FormatChecker())
    return document


def test_sarif_is_valid_and_points_to_the_right_places(lint: Lint, two_modules: None) -> None:
    document = validated(lint("--output-format", "sarif").out)
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    (p11,) = (each for each in run["results"] if each["ruleId"] == "P11")
    place = p11["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "shop/tasks.py", "uriBaseId": "SRCROOT"}
    assert place["region"] == {"startLine": 7, "startColumn": 5, "endLine": 7, "endColumn": 11}


def test_sarif_of_everything_is_valid(lint: Lint, folder: Path) -> None:
    (folder / "broken file.py").write_text("def f(:\n")
    (folder / "unused.py").write_text("x = 1  # effectonce: ignore[P11] old\n")
    document = validated(lint("--all", "--designs", "--output-format", "sarif", "--no-cache", str(CORPUS), ".").out)
    (run,) = document["runs"]
    assert len(run["results"]) > 150
    assert {each["id"] for each in run["tool"]["driver"]["rules"]} == {each["ruleId"] for each in run["results"]}
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    assert "broken%20file.py" in json.dumps(invocation["toolExecutionNotifications"])


def test_github_gets_commands_that_nothing_breaks_out_of(lint: Lint, folder: Path) -> None:
    (folder / "a,b:c%.py").write_text(BAD)
    first, *_ = lint("--output-format", "github", "--no-cache").out.splitlines()
    assert first.startswith(
        "::error file=a%2Cb%3Ac%25.py,line=6,col=5,endLine=6,title=effectonce P11 (unguarded-effect)::the Celery"
    )
    assert "%0Ahelp: " in first


def test_junit_is_xml_with_a_failure_for_each(lint: Lint, folder: Path, two_modules: None) -> None:
    (folder / "odd.py").write_text(BAD.replace("def charge", "def charge").replace('"eur"', '"<&>\x1b"'))
    suite = ElementTree.fromstring(lint("--all", "--output-format", "junit", "--no-cache").out).find("testsuite")
    assert suite is not None
    assert suite.get("failures") == suite.get("tests") == "5"
    assert {case.get("classname") for case in suite} == {"shop/tasks.py", "shop/gateway.py", "odd.py"}
    clean = ElementTree.fromstring(lint("--output-format", "junit", "--select", "EO4").out).find("testsuite")
    assert clean is not None
    assert (clean.get("tests"), clean.get("failures")) == ("1", "0")
