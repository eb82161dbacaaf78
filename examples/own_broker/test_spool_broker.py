import pytest
from spool_broker import SpoolBackend

from effectonce.testing.suites import broker_suite
from effectonce.values.urls import Address


@pytest.fixture
def site(tmp_path):
    return SpoolBackend(Address(f"spool://{tmp_path}?ack_window=500ms"))


TestContract = broker_suite(delay=0.1, quiet=0.1)
