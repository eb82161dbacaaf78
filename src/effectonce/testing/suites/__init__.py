"""The contracts of stores and brokers, as suites of cases that run on any backend.

A backend's whole test is its constructor and one call::

    from effectonce.testing.suites import broker_suite, store_suite

    TestStore = store_suite(lambda: MyStoreBackend("my://localhost"))
    TestBroker = broker_suite(lambda: MyBrokerBackend("my://localhost"))

or, where the address comes from fixtures, a fixture named ``backend`` (for a broker: ``site``) and the call without a
constructor::

    @pytest.fixture
    def backend(my_server_url):
        return MyBackend(my_server_url)

    TestContract = store_suite()

pytest then shows one test per sentence of the contract, as in
``TestContract::test_a_stale_release_leaves_the_successors_done_alone[sync]``. Without pytest:
``for case in store_cases(): case.run(backend, "sync")``; a case that does not apply raises `unittest.SkipTest`.

A case is a public coroutine function in a module of `stores` or `brokers`; its name is the sentence. Cases read the
backend's capabilities, never its name. Where ``backend.clock`` is a `ManualClock`, time is advanced; elsewhere cases
really wait.
"""

from .brokers.harness import BrokerHarness as BrokerHarness
from .brokers.harness import Site as Site
from .brokers.suite import BrokerCase as BrokerCase
from .brokers.suite import broker_cases as broker_cases
from .brokers.suite import broker_suite as broker_suite
from .stores.harness import StoreHarness as StoreHarness
from .stores.port_harness import PortKind as PortKind
from .stores.suite import StoreCase as StoreCase
from .stores.suite import store_cases as store_cases
from .stores.suite import store_suite as store_suite
