"""Values: keys, owners and fingerprints are compared as bytes, and results and errors are stored unchanged."""

from __future__ import annotations

import os

from effectonce.testing.suites.expectations import expect, expect_between, expect_fields

from .harness import StoreHarness, fingerprint
from .port_harness import SECOND_US

#: Keys that a store may take for one another, or misread: each line has one way in which that happens.
KEYS = (
    *("plain", "Plain", "PLAIN", "plain ", " plain", "plain\t", "plain\n", "Order:a", "ORDER:A "),  # collations
    *("order:á", "order:a\u0301", "order:à"),  # the second is the first, in its two parts
    *("straße", "strasse", "STRASSE", "\ufb01le", "file", "\uff37ide", "Wide"),  # folding of ligatures and widths
    *("İstanbul", "istanbul", "\u0131stanbul"),  # the dotless i
    *("日本語", "한국어", "\u1112\u1161\u11ab국어"),  # the last begins with the first syllable of the second, in parts
    *("😀", "👩\u200d👩\u200d👧", "👩👩👧", "zero\u200bwidth", "zerowidth", "\ufeffbom", "bom"),  # invisible characters
    *("quote'", 'quote"', "quote`", "'; DROP TABLE effectonce_records; --"),  # quoting
    *("percent%", "percent%s", "under_score", "underXscore", "brace{}", "brace{0}", "{tag}"),  # templates, LIKE, slots
    *("back\\slash", "back\\\\slash", "\\x00"),  # escapes
    *("colon:", "slash/", "*", "?", "[a]", "$1", ":name", "@var", "a,b", "a|b"),  # separators, globs, placeholders
    *("0", "00", "1", "1.0", "1e0", "-1", "null", "NULL", "None", "true"),  # literals
    *("a\rb", "a\r\nb", "\x1b[31mred", "\x7f"),  # control characters
    *("x" * 1023, "x" * 1024, "x" * 1023 + "y", "é" * 512),  # the longest there may be, in bytes
)
SCOPE_SUFFIXES = ("", " ", "-a", "-A", "-á", "-a\u0301", "-'", "-%", "-{0}", "-:", "-/", "-😀", "-*", "-_", "-X")
RESULTS = (
    *(None, b"", b"0", b"1null"),  # falsy ones: not stored is not ``b""``, and neither is "no record"
    *(b"\x00", b"\x00\x01\x00", b"a\x00b", b"\xff\xfe\x80", bytes(range(256))),
    *(b"'\"`\\%s{}\r\n", b" trailing ", "ünïcödé 😀".encode()),
)
ERRORS = (None, b"", b"\x00", b"\xff\xfe\x80", bytes(range(256)))
OWNERS = (b"\x00" * 16, b"\x00" * 15 + b"\x01", b"A" * 16, b"a" * 16, b"\xff" * 16, b" " * 16)
FINGERPRINTS = (
    *(b"\x01" + b"\x00" * 32, b"\x01" + b"\x00" * 31 + b"\x01", b"\x01" + b"\xff" * 32),
    *(fingerprint("A"), fingerprint("a")),
)


async def every_key_is_its_own(h: StoreHarness) -> None:
    """Collations merge keys (``Order:a`` and ``ORDER:A `` became one); templates and quoting break them."""
    expect(len(set(KEYS)), len(KEYS), "the suite's own keys, distinct")
    for key in KEYS:
        await h.make_record("done", key, result=key.encode())
    for key in KEYS:
        expect_fields(await h.look(key), f"a look at {key!r}", result=key.encode())
        expect_fields(await h.record(key), "the record as get shows it", key=key)
    expect(sorted(await h.list_keys()), sorted(KEYS), "the keys as list shows them")


async def every_scope_is_its_own(h: StoreHarness) -> None:
    """F24: two consumers of one message never hide it from each other."""
    for suffix in SCOPE_SUFFIXES:
        await h.make_record("done", "k", scope=h.scope + suffix, result=suffix.encode())
    for suffix in SCOPE_SUFFIXES:
        scope = h.scope + suffix
        expect_fields(await h.look("k", scope=scope), f"a look in scope …{suffix!r}", result=suffix.encode())
        records = await h.list_records(scope=scope)
        expect([record.scope for record in records], [scope], f"the scopes listed for …{suffix!r}")


async def scope_and_key_do_not_run_together(h: StoreHarness) -> None:
    """F23: (``a``, ``bc``) is not (``ab``, ``c``)."""
    pairs = [(h.scope, "bc"), (h.scope + "b", "c"), (h.scope, ":b:c")]
    for separator in (":", "/", "\x1f", "|"):
        pairs += [(f"{h.scope}{separator}b", "c"), (h.scope, f"b{separator}c")]
    pairs.append((h.scope, "/b/c"))
    for scope, key in pairs:
        await h.claim(key, scope=scope)
    await h.forget("bc")
    for scope, key in pairs[1:]:
        expect_fields(await h.record(key, scope=scope), f"({scope!r}, {key!r}) after a forget", state="claimed")


async def results_are_stored_byte_for_byte(h: StoreHarness) -> None:
    for n, result in enumerate(RESULTS):
        await h.make_record("done", f"r{n}", result=result)
        for answer in (await h.try_claim(f"r{n}"), await h.look(f"r{n}")):
            expect_fields(answer, "a duplicate's answer", kind="done", result=result)
        expect_fields(await h.record(f"r{n}"), result=result)


async def errors_are_stored_byte_for_byte(h: StoreHarness) -> None:
    for n, error in enumerate(ERRORS):
        await h.make_record("failed", f"e{n}", error=error)
        for answer in (await h.try_claim(f"e{n}"), await h.look(f"e{n}")):
            expect_fields(answer, "a duplicate's answer", kind="failed", error=error)


async def a_large_result_is_stored_whole(h: StoreHarness) -> None:
    """F18: 200 KB, which a column, a packet or a line must not cut."""
    result = os.urandom(200_000)
    await h.make_record("done", "done", result=result)
    expect_fields(await h.try_claim("done"), result=result)
    await h.remember("remembered", result=result)
    expect_fields(await h.look("remembered"), result=result)


async def owners_are_compared_as_bytes(h: StoreHarness) -> None:
    """A text column, a collation or a C string would stop at NUL or fold the case."""
    for n, owner in enumerate(OWNERS):
        grant = await h.claim(f"o{n}", owner=owner)
        for other in set(OWNERS) - {owner}:
            released = await h.try_settle(grant.with_another_owner(other), "free")
            expect(released, False, f"a release of {owner!r} by {other!r}")
            answer = await h.try_claim(f"o{n}", owner=other)
            expect_fields(answer, f"a claim of {owner!r}'s by {other!r}", kind="in_progress")
        expect_fields(await h.record(f"o{n}"), owner=owner)
        await h.settle(grant, "done")


async def fingerprints_are_compared_as_bytes(h: StoreHarness) -> None:
    """A text column, a collation or a C string would stop at NUL or fold the case."""
    for n, stored in enumerate(FINGERPRINTS):
        await h.claim(f"p{n}", fingerprints=stored)
        for sent in FINGERPRINTS:
            kind = "in_progress" if sent == stored else "mismatch"
            answer = await h.try_claim(f"p{n}", fingerprints=sent)
            expect_fields(answer, f"a claim of {stored!r} with {sent!r}", kind=kind)
        expect_fields(await h.record(f"p{n}"), fingerprint=stored)


async def long_spans_are_kept(h: StoreHarness) -> None:
    """A century in microseconds does not fit 32 bits, nor a float without care."""
    century = 100 * 365 * 86_400 * SECOND_US - 1
    before = await h.now()
    grant = await h.claim(lease=century // 2, retention=century // 2)
    expect_fields(await h.try_claim(), "a claim of a record leased for decades", kind="in_progress")
    await h.settle(grant, "done", result=b"r", retention=century)
    expires_at = (await h.record()).expires_at or 0
    expect_between(
        -120 * SECOND_US, expires_at - before - century, 120 * SECOND_US, "how far a century ends off, in us"
    )
    await h.remember("remembered", result=b"r", retention=century)
    await h.sweep()
    expect(await h.states("k", "remembered"), ["done", "done"], "the states after a sweep")
