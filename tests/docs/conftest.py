import pytest

from tests.conftest import SharedServer, serve


@pytest.fixture(scope="session")
def one_sqs_url(shared_server: SharedServer, aws_credentials: None) -> str:
    """`sqs_url` stands for two servers in turn; a page wants one."""
    return serve("SQS", lambda: shared_server("elasticmq"))
