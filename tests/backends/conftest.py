"""A socket or a file that a backend leaves open fails the test that left it."""

from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
#: What is checked. The others leave sockets of their drivers, or of the servers that a test plays, to the garbage
#: collection.
CHECKED: Final = ("nats", "sqlite", "sqs", "redis/test_connecting.py", "redis/test_port.py", "redis/test_routing.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(HERE / checked) for checked in CHECKED):
            item.add_marker(pytest.mark.filterwarnings("error::ResourceWarning"))
