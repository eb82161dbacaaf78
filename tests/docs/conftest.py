import pytest

from tests.conftest import SharedServer, server_url


@pytest.fixture(scope="session")
def one_sqs_url(shared_server: SharedServer, aws_credentials: None) -> str:
    """`sqs_url` stands for two servers in turn; a page wants one."""
    return server_url("SQS", lambda: shared_server("elasticmq"))
