"""The pytest plugin, as a project that has effectonce installed sees it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def test_a_marked_test_runs_its_body_twice_on_the_same_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import effectonce as eo

        ran, charges = [], []

        @pytest.mark.idempotent
        def test_charge(memory_store):
            ran.append(1)

            @eo.once(memory_store, scope="charge", key="payment_id")
            def charge(payment_id: str) -> None:
                charges.append(payment_id)

            charge("pay_1")
            assert charges == ["pay_1"]

        @pytest.mark.idempotent(times=3)
        def test_not_idempotent():
            charges.append("pay_2")
            assert charges.count("pay_2") == 1

        def test_the_first_ran_twice():
            assert len(ran) == 2
        """
    )
    outcome = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:xdist")
    outcome.assert_outcomes(passed=2, failed=1)
    outcome.stdout.fnmatch_lines(["*test_not_idempotent*"])


def test_the_clock_of_the_store_is_moved_by_hand(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import effectonce as eo

        def test_it_expires(memory_store, manual_clock):
            ran = []

            @eo.once(memory_store, scope="s", key="key", retention="1h")
            def handler(key: str) -> None:
                ran.append(key)

            handler("k"); handler("k")
            manual_clock.advance("2h")
            handler("k")
            assert ran == ["k", "k"]
        """
    )
    pytester.runpytest("-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=1)


def test_a_worker_is_tested_with_the_store_and_the_broker_of_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import effectonce as eo

        def test_it_charges_once(memory_store, memory_broker):
            charges = []
            worker = eo.Worker(memory_broker, store=memory_store)

            @worker.handler("orders")
            def charge(message: eo.Message[int]) -> None:
                charges.append(message.data)

            memory_broker.deliver(worker, "orders", eo.Message(data=4200))
            memory_broker.redeliver(worker)
            assert charges == [4200]
        """
    )
    pytester.runpytest("-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=1)


def test_a_marker_with_wrong_arguments_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.idempotent(0)
        def test_it():
            pass
        """
    )
    outcome = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:xdist")
    assert outcome.ret != 0
    outcome.stdout.fnmatch_lines(["*write @pytest.mark.idempotent*"])
