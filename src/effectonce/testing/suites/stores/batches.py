"""Batches: every operation answered in its place, each as if it were alone."""

from __future__ import annotations

from effectonce.contracts import Contention
from effectonce.errors import EffectOnceError
from effectonce.record import Answer, Look, Remember, Reply
from effectonce.testing.suites.expectations import expect, expect_fields, require, skip_unless

from .harness import RETENTION_US, StoreHarness, fingerprint


def _kinds(replies: list[Reply]) -> list[object]:
    return [reply.kind if isinstance(reply, Answer) else reply for reply in replies]


async def an_empty_batch_is_answered_by_nothing(h: StoreHarness) -> None:
    expect(list(await h.main_port.run([])), [], "the replies to an empty batch")


async def a_full_batch_of_claims_is_granted_and_settled(h: StoreHarness) -> None:
    claims = [h.make_claim(f"k{n:03}") for n in range(min(128, h.capabilities.batch))]
    grants = await h.claim_batch(claims)
    expect(len(grants), len(claims), "the claims granted of a full batch")
    for grant in grants:  # each repeated alone
        expect_fields(await h.send(grant.claim), kind="claimed", token=grant.token)
    applied = [True] * len(grants)
    expect(await h.run(*(grant.renewal() for grant in grants)), applied, "a full batch of renewals")
    settlements = [grant.settlement("done", result=grant.key.encode()) for grant in grants]
    expect(await h.run(*settlements), applied, "a full batch of settlements")
    expect(await h.run(*settlements), applied, "the same batch again")
    duplicates = await h.run(*(h.make_claim(claim.key) for claim in claims))
    results = [answer.result if isinstance(answer, Answer) else answer for answer in duplicates]
    expect(results, [claim.key.encode() for claim in claims], "the duplicates' results, in order")


async def a_full_batch_repeated_answers_the_same(h: StoreHarness) -> None:
    """F68: the connection broke in mid-batch; the whole batch is sent again."""
    claims = [h.make_claim(f"k{n:03}", max_attempts=1) for n in range(min(128, h.capabilities.batch))]
    grants = await h.claim_batch(claims)
    repeated = await h.claim_batch(claims, port=h.port())
    expect(len(repeated), len(claims), "the claims granted of a batch sent again")
    for first, again in zip(grants, repeated, strict=True):
        expect_fields(again.answer, "the repetition's answer", kind="claimed", token=first.token, attempts=1)


async def each_claim_of_a_batch_is_answered_in_its_place(h: StoreHarness) -> None:
    await h.make_record("done", "done", fingerprints=fingerprint("p"), result=b"r")
    await h.make_record("failed", "failed", error=b"e")
    await h.make_record("in_doubt", "in_doubt")
    await h.make_record("claimed", "in_progress")
    await h.make_record("free", "exhausted")
    await h.make_record("free", "free")
    await h.make_record("done", "mismatch", fingerprints=fingerprint("p"), result=b"secret")
    own = await h.claim("own")
    await h.make_record("lapsed", "lapsed")
    shortest = h.brief_us if h.capabilities.estimated_clock else 1
    await h.make_record("lapsed", "lapsed_doubt", lease=shortest, doubt_on_lapse=True)
    batch = [
        ("claimed", h.make_claim("absent")),
        ("done", h.make_claim("done", fingerprints=fingerprint("p"))),
        ("exhausted", h.make_claim("exhausted", max_attempts=1)),
        ("failed", h.make_claim("failed")),
        ("claimed", h.make_claim("free", max_attempts=5)),
        ("in_doubt", h.make_claim("in_doubt")),
        ("in_progress", h.make_claim("in_progress", waiting=True)),
        ("claimed", h.make_claim("lapsed", doubt_on_lapse=True)),
        ("in_doubt", h.make_claim("lapsed_doubt")),
        ("mismatch", h.make_claim("mismatch", fingerprints=fingerprint("q"))),
        ("claimed", own.claim),
    ]
    replies = await h.run(*(claim for _, claim in batch))
    expect(_kinds(replies), [kind for kind, _ in batch], "the kinds, in order")
    answers = {claim.key: reply for (_, claim), reply in zip(batch, replies, strict=True)}
    expect_fields(answers["done"], result=b"r")
    expect_fields(answers["failed"], error=b"e")
    expect_fields(answers["mismatch"], result=None)
    expect_fields(answers["absent"], attempts=1, lapsed=False)
    expect_fields(answers["free"], attempts=2, lapsed=False)
    expect_fields(answers["lapsed"], attempts=2, lapsed=True)
    expect_fields(answers["own"], attempts=1, token=own.token)
    expect_fields(await h.record("absent"), doubt_on_lapse=False)
    expect_fields(await h.record("lapsed"), doubt_on_lapse=True)


async def each_look_of_a_batch_is_answered_in_its_place(h: StoreHarness) -> None:
    await h.make_record("done", "a", fingerprints=fingerprint("p"), result=b"a")
    await h.claim("b")
    await h.make_record("in_doubt", "c")
    replies = await h.run(*(Look(h.scope, key, fingerprint("p")) for key in ("c", "a", "d", "b")))
    expect(_kinds(replies), ["in_doubt", "done", "absent", "in_progress"], "the kinds, in order")


async def each_settlement_of_a_batch_stands_alone(h: StoreHarness) -> None:
    """F70: one that is refused harms itself only."""
    good = [await h.claim(f"good{n}") for n in range(4)]
    zombie, successor = await h.make_takeover("stale")
    await h.settle(good[3], "done", result=b"before")
    batch = [
        good[1].settlement("failed", error=b"e"),
        good[2].settlement("free", refund=True),
        zombie.settlement("done", result=b"z"),
        good[0].with_token(good[0].token + 1).settlement("done", result=b"z"),
        good[3].settlement("done", result=b"again"),
    ]
    expect(await h.run(*batch), [True, True, False, False, True], "the replies, in order")
    states = await h.states(*(grant.key for grant in good))
    expect(states, ["claimed", "failed", "free", "done"], "the states")
    expect_fields(await h.record("good2"), "the refunded record", attempts=0)
    expect_fields(await h.record("good3"), "the record that was done before", result=b"before")
    expect_fields(await h.record("stale"), "the successor's claim", state="claimed", token=successor.token)
    await h.settle(good[0], "done", result=b"r")


async def each_renewal_of_a_batch_stands_alone(h: StoreHarness) -> None:
    a, b, c = await h.claim("a"), await h.make_record("done", "b"), await h.claim("c")
    replies = await h.run(a.renewal(), b.renewal(), c.with_token(1).renewal())
    expect(replies, [True, False, False], "the replies, in order")


async def each_remember_of_a_batch_stands_alone(h: StoreHarness) -> None:
    await h.claim("a")
    await h.make_record("done", "b", result=b"first")
    batch = [Remember(h.scope, key, RETENTION_US, b"", key.encode()) for key in ("c", "a", "d", "b")]
    expect(await h.run(*batch), [True, False, True, True], "the replies, in order")
    results = [(await h.look(key)).result for key in ("a", "b", "c", "d")]
    expect(results, [None, b"first", b"c", b"d"], "the results")


async def a_batch_may_mix_kinds_where_the_store_takes_them_so(h: StoreHarness) -> None:
    skip_unless(
        h.capabilities.connections != "by_kind" or h.capabilities.mixed_batches, "a store that takes all kinds at once"
    )
    a, b, c = await h.claim("a"), await h.claim("b"), await h.claim("c")
    await h.make_record("done", "z", result=b"z")
    replies = await h.run(
        Look(h.scope, "z"),
        b.settlement("done", result=b"b"),
        h.make_claim("new"),
        a.renewal(),
        Remember(h.scope, "remembered", RETENTION_US, b"", b"m"),
        c.settlement("free"),
        h.make_claim("0"),
    )
    expect(_kinds(replies), ["done", True, "claimed", True, True, True, "claimed"], "the replies, in order")
    states = await h.states("a", "b", "c", "new", "remembered", "0")
    expect(states, ["claimed", "done", "free", "claimed", "done", "claimed"], "the states")


async def a_batch_over_many_scopes_keeps_them_apart(h: StoreHarness) -> None:
    claims = [h.make_claim("k", scope=f"{h.scope}-{n % 10}{n}") for n in range(40)]
    grants = await h.claim_batch(claims)
    expect(len(grants), len(claims), "the claims granted")
    for grant in grants:
        expect_fields(grant.answer, attempts=1)
        expect_fields(await h.record("k", scope=grant.claim.scope), owner=grant.claim.owner)


async def a_batch_of_large_results_is_stored_whole(h: StoreHarness) -> None:
    grants = [await h.claim(f"k{n}") for n in range(8)]
    results = [bytes([n]) * 100_000 for n in range(8)]
    batch = [grant.settlement("done", result=result) for grant, result in zip(grants, results, strict=True)]
    expect(await h.run(*batch), [True] * 8, "the replies")
    duplicates = await h.run(*(h.make_claim(grant.key) for grant in grants))
    expect([answer.result for answer in duplicates if isinstance(answer, Answer)], results, "the results")


async def an_operation_the_store_cannot_keep_harms_itself_only(h: StoreHarness) -> None:
    """F70: some stores refuse NUL in a text. The claim fails alone, or with its batch, which is then redone singly."""
    claims = [h.make_claim(f"good{n}") for n in range(3)]
    bad = h.make_claim("good1\x00bad")
    errors: list[Exception] = []
    try:
        replies = await h.run(claims[0], claims[1], bad, claims[2])
    except Exception as error:
        errors.append(error)
    else:
        expect(_kinds([replies[0], replies[1], replies[3]]), ["claimed"] * 3, "the good ones beside a bad one")
        if isinstance(replies[2], Exception):
            errors.append(replies[2])
    for claim in claims:
        grant = await h.send_claim(claim)
        expect_fields(grant.answer, "a good one, redone singly", attempts=1)
        await h.settle(grant, "done")
    for raised in errors:
        translated = isinstance(raised, EffectOnceError | Contention | ValueError)
        require(translated, f"a driver's exception got out untranslated: {type(raised).__module__}.{raised!r}")
