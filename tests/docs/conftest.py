from collections.abc import Iterator

import pytest

from tests.conftest import serve
from tests.harness.sqs import elasticmq


@pytest.fixture(scope="session")
def one_sqs_url(aws_credentials: None) -> Iterator[str]:
    """`sqs_url` stands for two servers in turn; a page wants one."""
    yield from serve("SQS", elasticmq)
