import pytest
from file_store import FileBackend

from effectonce.testing import ManualClock
from effectonce.testing.suites import store_suite
from effectonce.values.urls import Address


@pytest.fixture
def backend(tmp_path):
    backend = FileBackend(Address(f"file://{tmp_path}/records.bin"))
    backend.clock = ManualClock()  # time passes when the suite says so; without it the suite waits
    return backend


TestContract = store_suite()
