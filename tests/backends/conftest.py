"""A socket or a file that a backend leaves open fails the test that left it."""

from functools import cache
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
#: What is checked. The others leave sockets of their drivers, or of the servers that a test plays, to the garbage
#: collection.
CHECKED: Final = ("nats", "sqlite", "sqs", "redis/test_connecting.py", "redis/test_port.py", "redis/test_routing.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_checked(item.path):
            item.add_marker(pytest.mark.filterwarnings("error::ResourceWarning"))


@cache  # of a few hundred files, asked for twenty thousand tests
def is_checked(path: Path) -> bool:
    return any(path.is_relative_to(HERE / checked) for checked in CHECKED)
