"""Identities and payloads: what is compared as bytes must stay bytes, and what is stored must come back."""

from __future__ import annotations

import os

from effectonce.record import Remember

from .harness import KEEP, Harness, a_print, case
from .sentences import equal, holds

KEYS = (
    "plain",
    "Plain",
    "PLAIN",
    "plain ",
    " plain",
    "plain\t",
    "plain\n",
    "Order:a",
    "ORDER:A ",
    "order:á",
    "order:a\u0301",  # the same letter, composed of two
    "order:à",
    "straße",
    "strasse",
    "STRASSE",
    "\ufb01le",
    "file",
    "\uff37ide",
    "Wide",
    "İstanbul",
    "istanbul",
    "\u0131stanbul",
    "日本語",
    "한국어",
    "\u1112\u1161\u11ab국어",  # the first syllable in its parts
    "😀",
    "👩\u200d👩\u200d👧",
    "👩👩👧",
    "zero\u200bwidth",
    "zerowidth",
    "quote'",
    'quote"',
    "quote`",
    "'; DROP TABLE effectonce_records; --",
    "percent%",
    "percent%s",
    "under_score",
    "underXscore",
    "brace{}",
    "brace{0}",
    "{tag}",
    "back\\slash",
    "back\\\\slash",
    "\\x00",
    "colon:",
    "slash/",
    "*",
    "?",
    "[a]",
    "$1",
    ":name",
    "@var",
    "0",
    "00",
    "1",
    "1.0",
    "1e0",
    "-1",
    "null",
    "NULL",
    "None",
    "true",
    "a,b",
    "a|b",
    "a\rb",
    "a\r\nb",
    "\x1b[31mred",
    "\x7f",
    "\ufeffbom",
    "bom",
    "x" * 1023,
    "x" * 1024,
    "x" * 1023 + "y",
    "é" * 512,
)


@case
async def every_key_is_its_own(h: Harness) -> None:
    """Collations merge keys (``Order:a`` and ``ORDER:A `` became one); templates and quoting break them."""
    equal(len(set(KEYS)), len(KEYS), "the suite's own keys, distinct")
    for key in KEYS:
        mine = await h.ask(key)
        equal(mine.kind, "claimed", f"the claim of {key!r}")
        equal(await h.settle(mine, "done", result=key.encode()), True, f"the completion of {key!r}")
    for key in KEYS:
        equal((await h.look(key)).result, key.encode(), f"the result of {key!r}")
        equal((await h.record(key)).key, key, "the key as get shows it")
    equal(sorted(r.key for r in await h.listed(scope=h.scope)), sorted(KEYS), "the keys as list shows them")


@case
async def every_scope_is_its_own(h: Harness) -> None:
    """F24: two consumers of one message never hide it from each other."""
    tails = ("", " ", "-a", "-A", "-á", "-a\u0301", "-'", "-%", "-{0}", "-:", "-/", "-😀", "-*", "-_", "-X")
    for tail in tails:
        mine = await h.take("k", scope=h.scope + tail)
        await h.settle(mine, "done", result=tail.encode())
    for tail in tails:
        scope = h.scope + tail
        equal((await h.look("k", scope=scope)).result, tail.encode(), f"the result in scope …{tail!r}")
        equal([r.scope for r in await h.listed(scope=scope)], [scope], f"the scopes listed for …{tail!r}")


@case
async def scope_and_key_do_not_run_together(h: Harness) -> None:
    """F23: (``a``, ``bc``) is not (``ab``, ``c``)."""
    a = h.scope
    pairs = [
        (a, "bc"),
        (a + "b", "c"),
        (a + ":b", "c"),
        (a, "b:c"),
        (a, ":b:c"),
        (a + "/b", "c"),
        (a, "/b/c"),
    ]
    pairs += [(a + "\x1fb", "c"), (a, "b\x1fc"), (a + "|b", "c"), (a, "b|c")]
    for scope, key in pairs:
        equal((await h.ask(key, scope=scope)).kind, "claimed", f"the claim of …{scope[len(a) :]!r}, {key!r}")
    holds(await h.first.forget(a, "bc", KEEP), "the forget was not applied")
    for scope, key in pairs[1:]:
        equal(
            (await h.record(key, scope=scope)).state,
            "claimed",
            f"…{scope[len(a) :]!r}, {key!r}, after a forget",
        )


@case
async def results_come_back_byte_for_byte(h: Harness) -> None:
    """Falsy results included: None (not stored) is not ``b""``, and neither is "no record"."""
    values: list[bytes | None] = [
        None,
        b"",
        b"0",
        b"1null",
        b"\x00",
        b"\x00\x01\x00",
        b"a\x00b",
        b"\xff\xfe\x80",
        bytes(range(256)),
        b"'\"`\\%s{}\r\n",
        b" trailing ",
        "ünïcödé 😀".encode(),
    ]
    for n, value in enumerate(values):
        await h.settle(await h.take(f"r{n}"), "done", result=value)
        for answer in ((await h.ask(f"r{n}")).answer, await h.look(f"r{n}")):
            equal((answer.kind, answer.result), ("done", value), "a duplicate's answer")
        equal((await h.record(f"r{n}")).result, value, "the stored result")


@case
async def errors_come_back_byte_for_byte(h: Harness) -> None:
    for n, value in enumerate((None, b"", b"\x00", b"\xff\xfe\x80", bytes(range(256)))):
        await h.settle(await h.take(f"e{n}"), "failed", error=value)
        for answer in ((await h.ask(f"e{n}")).answer, await h.look(f"e{n}")):
            equal((answer.kind, answer.error), ("failed", value), "a duplicate's answer")


@case
async def a_large_result_comes_back_whole(h: Harness) -> None:
    """F18: 200 KB, which a column, a packet or a line must not cut."""
    value = os.urandom(200_000)
    equal(await h.settle(await h.take("done"), "done", result=value), True, "the completion")
    equal((await h.ask("done")).answer.result, value, "a duplicate's answer")
    equal(await h.remember("remembered", result=value), True, "the remember")
    equal((await h.look("remembered")).result, value, "a look")


@case
async def owners_and_fingerprints_are_compared_as_bytes(h: Harness) -> None:
    """A text column, a collation or a C string would stop at NUL or fold the case."""
    owners = [b"\x00" * 16, b"\x00" * 15 + b"\x01", b"A" * 16, b"a" * 16, b"\xff" * 16, b" " * 16]
    for n, owner in enumerate(owners):
        mine = await h.take(f"o{n}", owner=owner)
        for other in owners:
            if other != owner:
                equal(
                    await h.settle(mine.with_owner(other), "free"),
                    False,
                    f"a release of {owner!r} by {other!r}",
                )
                equal(
                    (await h.ask(f"o{n}", owner=other)).kind,
                    "in_progress",
                    f"a claim of {owner!r}'s by {other!r}",
                )
        equal((await h.record(f"o{n}")).owner, owner, "the stored owner")
        equal(await h.settle(mine, "done"), True, f"a completion by {owner!r}")
    prints = [
        b"\x01" + b"\x00" * 32,
        b"\x01" + b"\x00" * 31 + b"\x01",
        a_print("A"),
        a_print("a"),
        b"\x01" + b"\xff" * 32,
    ]
    for n, sent in enumerate(prints):
        await h.take(f"p{n}", prints=sent)
        for other in prints:
            want = "in_progress" if other == sent else "mismatch"
            equal((await h.ask(f"p{n}", prints=other)).kind, want, f"a claim of {sent!r} with {other!r}")
        equal((await h.record(f"p{n}")).fingerprint, sent, "the stored fingerprint")


@case
async def long_spans_are_kept(h: Harness) -> None:
    """A century in microseconds does not fit 32 bits, nor a float without care."""
    century = 100 * 365 * 86_400 * 1_000_000 - 1
    before = await h.now()
    mine = await h.take(lease=century // 2, retention=century // 2)
    equal((await h.ask()).kind, "in_progress", "a claim of a record leased for decades")
    equal(await h.settle(mine, "done", result=b"r", retention=century), True, "the completion")
    expires = (await h.record()).expires_at or 0
    holds(abs(expires - before - century) < 120_000_000, f"a century ends {expires - before - century} us off")
    equal(await h.one(Remember(h.scope, "remembered", century, b"", b"r")), True, "a remember for a century")
    await h.sweep()
    equal([await h.state("k"), await h.state("remembered")], ["done", "done"], "the states after a sweep")
