"""Batches: every operation answered in its place, each as if it were alone."""

from __future__ import annotations

from effectonce.contracts import Contention
from effectonce.errors import EffectOnceError
from effectonce.record import Answer, Batchable, Look, Remember, Reply

from .harness import KEEP, Harness, a_print, case
from .sentences import equal, holds


def _kinds(replies: list[Reply]) -> list[object]:
    return [reply.kind if isinstance(reply, Answer) else reply for reply in replies]


@case
async def an_empty_batch_is_answered_by_nothing(h: Harness) -> None:
    equal(list(await h.first.run([])), [], "the replies to an empty batch")


@case
async def a_full_batch_of_claims_is_granted_and_settled(h: Harness) -> None:
    size = min(128, h.capabilities.batch)
    claims = [h.a_claim(f"k{n:03}") for n in range(size)]
    granted = await h.run(*claims)
    equal(_kinds(granted), ["claimed"] * size, "the kinds of a full batch of claims")
    tries = [await h.send(claim) for claim in claims]  # each repeated alone: the same token
    equal([t.token for t in tries], [a.token for a in granted if isinstance(a, Answer)], "tokens, in order")
    equal(await h.run(*(h.a_renewal(t) for t in tries)), [True] * size, "a full batch of renewals")
    settlements = [h.a_settlement(t, "done", result=t.claim.key.encode()) for t in tries]
    equal(await h.run(*settlements), [True] * size, "a full batch of settlements")
    equal(await h.run(*settlements), [True] * size, "the same batch again")
    again = await h.run(*(h.a_claim(claim.key) for claim in claims))
    results = [a.result if isinstance(a, Answer) else a for a in again]
    equal(results, [claim.key.encode() for claim in claims], "the duplicates' results, in order")


@case
async def a_full_batch_repeated_answers_the_same(h: Harness) -> None:
    """F68: the connection broke in mid-batch; the whole batch is sent again."""
    size = min(128, h.capabilities.batch)
    claims = [h.a_claim(f"k{n:03}", max_attempts=1) for n in range(size)]
    first = await h.run(*claims)
    second = await h.run(*claims, port=h.port())
    for one, other in zip(first, second, strict=True):
        if not isinstance(one, Answer) or not isinstance(other, Answer):
            raise AssertionError(f"claims answered by {one!r} and {other!r}, which are no Answers")
        equal((other.kind, other.token, other.attempts), ("claimed", one.token, 1), "the repetition's answer")


@case
async def each_claim_of_a_batch_is_answered_in_its_place(h: Harness) -> None:
    await h.settle(await h.take("done", prints=a_print("p")), "done", result=b"r")
    await h.settle(await h.take("failed"), "failed", error=b"e")
    await h.in_doubt("in_doubt")
    await h.take("in_progress")
    await h.settle(await h.take("exhausted"), "free")
    await h.settle(await h.take("free"), "free")
    await h.settle(await h.take("mismatch", prints=a_print("p")), "done", result=b"secret")
    own = await h.take("own")
    await h.lapsed("lapsed")
    await h.lapsed("lapsed_doubt", lease=1 if not h.capabilities.estimated_clock else h.brief, doubt=True)
    claims = [
        h.a_claim("absent"),
        h.a_claim("done", prints=a_print("p")),
        h.a_claim("exhausted", max_attempts=1),
        h.a_claim("failed"),
        h.a_claim("free", max_attempts=5),
        h.a_claim("in_doubt"),
        h.a_claim("in_progress", waiting=True),
        h.a_claim("lapsed", doubt=True),
        h.a_claim("lapsed_doubt"),
        h.a_claim("mismatch", prints=a_print("q")),
        own.claim,
    ]
    replies = await h.run(*claims)
    want = [
        "claimed",
        "done",
        "exhausted",
        "failed",
        "claimed",
        "in_doubt",
        "in_progress",
        "claimed",
        "in_doubt",
    ]
    equal(_kinds(replies), [*want, "mismatch", "claimed"], "the kinds, in order")
    answers = {c.key: r for c, r in zip(claims, replies, strict=True) if isinstance(r, Answer)}
    equal((answers["done"].result, answers["failed"].error), (b"r", b"e"), "result and error")
    equal(answers["mismatch"].result, None, "the result told to a mismatch")
    attempts = [answers[key].attempts for key in ("absent", "free", "lapsed", "own")]
    equal(attempts, [1, 2, 2, 1], "attempts of absent, free, lapsed, own")
    equal(answers["own"].token, own.token, "the token of one's own")
    equal([answers[key].lapsed for key in ("absent", "free", "lapsed")], [False, False, True], "lapsed")
    equal(
        [(await h.record(k)).doubt_on_lapse for k in ("absent", "lapsed")],
        [False, True],
        "each its own choice",
    )


@case
async def each_look_of_a_batch_is_answered_in_its_place(h: Harness) -> None:
    await h.settle(await h.take("a", prints=a_print("p")), "done", result=b"a")
    await h.take("b")
    await h.in_doubt("c")
    replies = await h.run(*(Look(h.scope, key, a_print("p")) for key in ("c", "a", "d", "b")))
    equal(_kinds(replies), ["in_doubt", "done", "absent", "in_progress"], "the kinds, in order")


@case
async def each_settlement_of_a_batch_stands_alone(h: Harness) -> None:
    """F70: one that is refused harms itself only."""
    good = [await h.take(f"good{n}") for n in range(4)]
    stale = [await h.lapsed("stale")]
    successor = await h.take("stale")
    foreign = good[0].with_token(good[0].token + 1)
    await h.settle(good[3], "done", result=b"before")
    batch = [
        h.a_settlement(good[1], "failed", error=b"e"),
        h.a_settlement(good[2], "free", refund=True),
        h.a_settlement(stale[0], "done", result=b"z"),
        h.a_settlement(foreign, "done", result=b"z"),
        h.a_settlement(good[3], "done", result=b"again"),
    ]
    equal(await h.run(*batch), [True, True, False, False, True], "the replies, in order")
    equal([await h.state(f"good{n}") for n in range(4)], ["claimed", "failed", "free", "done"], "the states")
    equal((await h.record("good2")).attempts, 0, "attempts after the refund")
    equal((await h.record("good3")).result, b"before", "the result that was there before")
    record = await h.record("stale")
    equal((record.state, record.token), ("claimed", successor.token), "the successor's claim")
    equal(await h.settle(good[0], "done", result=b"r"), True, "the settlement of the one that was refused")


@case
async def each_renewal_of_a_batch_stands_alone(h: Harness) -> None:
    a, b, c = await h.take("a"), await h.take("b"), await h.take("c")
    await h.settle(b, "done")
    replies = await h.run(h.a_renewal(a), h.a_renewal(b), h.a_renewal(c.with_token(1)))
    equal(replies, [True, False, False], "the replies, in order")


@case
async def each_remember_of_a_batch_stands_alone(h: Harness) -> None:
    await h.take("a")
    await h.settle(await h.take("b"), "done", result=b"first")
    batch = [Remember(h.scope, key, KEEP, b"", key.encode()) for key in ("c", "a", "d", "b")]
    equal(await h.run(*batch), [True, False, True, True], "the replies, in order")
    results = [(await h.look(key)).result for key in ("a", "b", "c", "d")]
    equal(results, [None, b"first", b"c", b"d"], "the results")


@case
async def a_batch_may_mix_kinds_where_the_store_takes_them_so(h: Harness) -> None:
    h.needs(h.capabilities.lanes != 3 or h.capabilities.mixes, "a store that takes all kinds at once")
    a, b, c = await h.take("a"), await h.take("b"), await h.take("c")
    await h.settle(await h.take("z"), "done", result=b"z")
    batch: list[Batchable] = [
        Look(h.scope, "z"),
        h.a_settlement(b, "done", result=b"b"),
        h.a_claim("new"),
        h.a_renewal(a),
        Remember(h.scope, "remembered", KEEP, b"", b"m"),
        h.a_settlement(c, "free"),
        h.a_claim("0"),
    ]
    replies = await h.run(*batch)
    equal(_kinds(replies), ["done", True, "claimed", True, True, True, "claimed"], "the replies, in order")
    states = [await h.state(key) for key in ("a", "b", "c", "new", "remembered", "0")]
    equal(states, ["claimed", "done", "free", "claimed", "done", "claimed"], "the states")


@case
async def a_batch_over_many_scopes_keeps_them_apart(h: Harness) -> None:
    claims = [h.a_claim("k", scope=f"{h.scope}-{n % 10}{n}") for n in range(40)]
    replies = await h.run(*claims)
    equal(_kinds(replies), ["claimed"] * 40, "the kinds")
    for claim, reply in zip(claims, replies, strict=True):
        equal((await h.record("k", scope=claim.scope)).owner, claim.owner, f"the owner in {claim.scope}")
        holds(isinstance(reply, Answer) and reply.attempts == 1, f"attempts in {claim.scope}: {reply}")


@case
async def a_batch_of_large_results_is_stored_whole(h: Harness) -> None:
    tries = [await h.take(f"k{n}") for n in range(8)]
    values = [bytes([n]) * 100_000 for n in range(8)]
    batch = [h.a_settlement(t, "done", result=v) for t, v in zip(tries, values, strict=True)]
    equal(await h.run(*batch), [True] * 8, "the replies")
    found = await h.run(*(h.a_claim(f"k{n}") for n in range(8)))
    equal([a.result for a in found if isinstance(a, Answer)], values, "the results")


@case
async def an_operation_the_store_cannot_keep_harms_itself_only(h: Harness) -> None:
    """F70: NUL is no text for some stores. It fails alone, or with its batch, which is then redone singly."""
    claims = [h.a_claim(f"good{n}") for n in range(3)]
    bad = h.a_claim("good1\x00bad")
    errors: list[Exception] = []
    try:
        replies = await h.run(claims[0], claims[1], bad, claims[2])
    except Exception as error:
        errors.append(error)
    else:
        equal(_kinds([replies[0], replies[1], replies[3]]), ["claimed"] * 3, "the good ones beside a bad one")
        if isinstance(replies[2], Exception):
            errors.append(replies[2])
    for claim in claims:
        mine = await h.send(claim)
        equal((mine.kind, mine.answer.attempts), ("claimed", 1), "a good one, redone singly")
        equal(await h.settle(mine, "done"), True, "its settlement")
    for raised in errors:
        translated = isinstance(raised, EffectOnceError | Contention | ValueError)
        holds(translated, f"a driver's exception got out untranslated: {type(raised).__module__}.{raised!r}")
