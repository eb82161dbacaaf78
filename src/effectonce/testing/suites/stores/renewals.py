"""Renewals: how a claim's lease is extended, and when that is refused."""

from __future__ import annotations

from effectonce.testing.suites.expectations import expect, expect_fields

from .harness import LEASE_US, RETENTION_US, SETTLEMENTS, StoreHarness


async def a_renewal_extends_the_lease_from_now(h: StoreHarness) -> None:
    grant = await h.claim(lease=LEASE_US)
    before = await h.now()
    await h.renew(grant, 2 * LEASE_US, RETENTION_US)
    record = await h.record()
    await h.expect_lease(record, 2 * LEASE_US, before)
    expect_fields(record, owner=grant.claim.owner, token=grant.token, attempts=1)


async def a_renewed_lease_outlives_the_first(h: StoreHarness) -> None:
    grant = await h.claim(lease=h.brief_us)
    await h.renew(grant, LEASE_US)
    await h.wait_out(h.brief_us)
    expect_fields(await h.try_claim(), "the answer after the first lease would have ended", kind="in_progress")


async def a_renewed_lease_ends_too(h: StoreHarness) -> None:
    grant = await h.claim(lease=LEASE_US)
    await h.renew(grant, h.brief_us)
    await h.wait_out(h.brief_us)
    expect_fields((await h.claim()).answer, "the claim after the renewed lease", lapsed=True)


async def a_renewal_repeated_answers_true(h: StoreHarness) -> None:
    grant = await h.claim()
    for _ in range(3):
        await h.renew(grant)


async def a_renewed_claim_with_doubt_on_lapse_still_never_expires(h: StoreHarness) -> None:
    grant = await h.claim(lease=LEASE_US, doubt_on_lapse=True)
    await h.renew(grant, h.brief_us, h.brief_us)
    expect_fields(await h.record(), expires_at=None)
    await h.wait_out(3 * h.brief_us)
    expect_fields(await h.try_claim(), "the answer long after", kind="in_doubt")


async def a_settled_record_is_not_renewed(h: StoreHarness) -> None:
    for state in SETTLEMENTS:
        grant = await h.make_record(state, state)
        before = await h.get(state)
        expect(await h.try_renew(grant), False, f"a renewal after {state}")
        expect(await h.get(state), before, f"the record, which is {state}")
