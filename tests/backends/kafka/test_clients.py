"""Settings of a Kafka cluster, its errors, records, and producers, with stand-ins for the driver's clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from effectonce.backends.kafka import topics
from effectonce.backends.kafka.dead_letters import KafkaDeadLetters, dead_letter_record
from effectonce.backends.kafka.endpoint import KafkaCluster, parse_cluster, require_names
from effectonce.backends.kafka.errors import INVALID_CODES, MISSING_CODES, REFUSED_CODES, TOO_LARGE_CODES, translate
from effectonce.backends.kafka.producer import ConfirmedProducer
from effectonce.backends.kafka.records import KafkaRecord, make_record, read_packet
from effectonce.contracts import Packet
from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption
from effectonce.values.urls import Address
from tests.harness.certificates import Authority


def cluster_at(url: str = "kafka://h") -> KafkaCluster:
    return parse_cluster(Address(url))


# -- settings


def test_a_bare_url_is_one_broker_without_tls() -> None:
    cluster = cluster_at()
    assert cluster.config["bootstrap.servers"] == "h:9092"
    assert cluster.config["security.protocol"] == "plaintext"
    assert (cluster.timeout, cluster.session_timeout, cluster.max_body) == (30.0, 45.0, 1_000_000)
    assert (cluster.retention, cluster.partitions, cluster.replication) == (7 * 86400.0, -1, -1)
    assert cluster.config["socket.timeout.ms"] == 30_000
    assert not {"sasl.username", "ssl.ca.location"} & cluster.config.keys()


def test_a_url_says_all_that_a_client_needs() -> None:
    cluster = cluster_at(
        "kafka://shop:s%2Fcret@h:9093,i,[::1]:9094?mechanism=SCRAM-SHA-256&timeout=200ms"
        "&session_timeout=10s&max_body=5&retention=unlimited&partitions=3&replication=2"
    )
    assert cluster.config["bootstrap.servers"] == "h:9093,i:9092,[::1]:9094"
    assert cluster.config["security.protocol"] == "sasl_ssl"
    assert cluster.config["sasl.mechanism"] == "SCRAM-SHA-256"
    assert (cluster.config["sasl.username"], cluster.config["sasl.password"]) == ("shop", "s/cret")
    assert cluster.config["socket.timeout.ms"] == 1000  # the driver takes no less
    assert (cluster.timeout, cluster.session_timeout, cluster.max_body) == (0.2, 10.0, 5)
    assert (cluster.retention, cluster.partitions, cluster.replication) == (None, 3, 2)
    assert cluster_at("kafka://h?retention=2h").retention == 7200.0
    assert cluster_at("kafka://shop@h").config["sasl.password"] == ""


# -- who the client is, and whom it trusts


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("kafka://h", "plaintext"),
        ("kafka://h?tls=yes", "ssl"),
        ("kafka://a:b@h", "sasl_ssl"),
        ("kafka://a:b@h?tls=no", "sasl_plaintext"),
        ("kafka://h?mechanism=GSSAPI", "sasl_ssl"),
    ],
)
def test_a_login_is_over_tls_unless_the_url_says_otherwise(url: str, protocol: str) -> None:
    assert cluster_at(url).config["security.protocol"] == protocol


def test_the_options_for_tls_are_those_of_every_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours = authority.issue("shop")
    config = cluster_at(
        f"kafka://h?tls=yes&ca_file={authority.ca_file}&cert_file={ours.cert_file}&key_file={ours.key_file}"
    ).config
    assert config["ssl.ca.location"] == str(authority.ca_file)
    assert (config["ssl.certificate.location"], config["ssl.key.location"]) == tuple(map(str, ours))
    assert config["ssl.endpoint.identification.algorithm"] == "https"
    ca_only = cluster_at("kafka://h?tls=yes&verify=ca").config
    assert (ca_only["ssl.endpoint.identification.algorithm"], "enable.ssl.certificate.verification" in ca_only) == (
        "none",
        False,
    )
    assert cluster_at("kafka://h?tls=yes&verify=no").config["enable.ssl.certificate.verification"] is False


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://h?mechanism=PLAIN", "needs a user"),
        ("kafka://h?mechanism=OAUTHBEARER", "token_url=https"),
        ("kafka://a:b@h?mechanism=OAUTHBEARER", "token_url=https"),
        ("kafka://a:b@h?token_url=https://id", "mechanism=OAUTHBEARER"),
        ("kafka://h?tls=yes&server_name=x", "verify=ca"),
        ("kafka://h?ca_file=/x", "add tls=yes"),
    ],
)
def test_a_login_that_cannot_be_is_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        cluster_at(url)


def test_a_token_is_fetched_from_an_identity_provider() -> None:
    config = cluster_at(
        "kafka://id:secret@h?mechanism=OAUTHBEARER&token_url=https://id.example/token&scope=shop"
    ).config
    assert config["sasl.mechanism"] == "OAUTHBEARER"
    assert config["sasl.oauthbearer.method"] == "oidc"
    assert config["sasl.oauthbearer.token.endpoint.url"] == "https://id.example/token"
    assert (config["sasl.oauthbearer.client.id"], config["sasl.oauthbearer.client.secret"]) == ("id", "secret")
    assert config["sasl.oauthbearer.scope"] == "shop"


def test_a_kerberos_login_takes_its_settings_as_librdkafka_has_them() -> None:
    cluster = cluster_at("kafka://h?mechanism=GSSAPI&sasl.kerberos.keytab=/k&sasl.kerberos.principal=shop")
    assert cluster.config["sasl.mechanism"] == "GSSAPI"
    assert cluster.settings == {"sasl.kerberos.keytab": "/k", "sasl.kerberos.principal": "shop"}


def test_settings_of_librdkafka_go_to_every_client_and_win_over_our_choice() -> None:
    cluster = cluster_at("kafka://h?client.rack=eu-1&fetch.wait.max.ms=7&debug=broker")
    made: dict[str, Any] = {}
    cluster.make_client(lambda config, logger: made.update(config), print, {"fetch.wait.max.ms": 10})
    assert (made["client.rack"], made["fetch.wait.max.ms"], made["debug"]) == ("eu-1", "7", "broker")


@pytest.mark.parametrize("setting", ["enable.idempotence", "enable.auto.commit", "auto.offset.reset", "group.id"])
def test_a_setting_on_which_a_promise_rests_is_refused(setting: str) -> None:
    with pytest.raises(InvalidOption, match=setting):
        cluster_at(f"kafka://h?{setting}=x")


@pytest.mark.parametrize("url", ["kafka://", "kafka:///x", "kafka://h/queue"])
def test_a_url_has_a_host_and_no_path(url: str) -> None:
    with pytest.raises(InvalidOption, match="has a host"):
        cluster_at(url)


@pytest.mark.parametrize("names", [("a b", "g"), ("q", "a/b"), ("q", "")])
def test_f61_a_queue_and_a_group_are_parts_of_names_of_topics(names: tuple[str, str]) -> None:
    assert require_names("orders.v1_x-y", "g") == ("orders.v1_x-y", "g")
    with pytest.raises(InvalidOption):
        require_names(*names)


# -- errors


def error_of(code: str) -> Any:
    return SimpleNamespace(name=lambda: code, str=lambda: "words", fatal=lambda: False)


@pytest.mark.parametrize(
    ("codes", "said"),
    [(REFUSED_CODES, "ACLs"), (MISSING_CODES, "no topic q"), (TOO_LARGE_CODES, "max_body"), (INVALID_CODES, "words")],
)
def test_a_refusal_says_what_to_do(codes: set[str], said: str) -> None:
    for code in codes:
        ours = translate(error_of(code), cluster_at(), "q")
        assert isinstance(ours, ConfigurationError)
        assert said in str(ours)


def test_all_other_errors_are_an_unavailable_cluster() -> None:
    wrapped = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    for error in (wrapped, wrapped.args[0], error_of("SOMETHING_NEW")):
        assert isinstance(translate(error, cluster_at()), BrokerUnavailable)


# -- records


def test_a_record_carries_the_packet() -> None:
    packet = Packet(body=b"x", id="id", headers={"a": "é"}, ordering_key="k")
    record = make_record(packet)
    assert record == KafkaRecord(b"k", b"x", [("a", "é".encode()), ("eo-id", b"id")], 0)
    assert read_packet(record.key, record.value, list(record.headers)) == packet
    assert make_record(Packet(body=b"x")) == KafkaRecord(None, b"x", [], 0)


@pytest.mark.parametrize(("age_s", "is_kept"), [(0, True), (3500, True), (3700, False), (-3500, True), (-3700, False)])
def test_a_record_is_as_old_as_its_message_unless_that_is_long_ago(age_s: int, is_kept: bool) -> None:
    milliseconds = round((time.time() - age_s) * 1000)
    record = make_record(Packet(body=b"x", fields={"timestamp": str(milliseconds)}))
    assert record.timestamp == (milliseconds if is_kept else 0)


def test_a_record_of_another_producer_is_read_as_far_as_it_can_be() -> None:
    packet = read_packet(b"\xff", None, [("a", b"\xff"), ("none", None)])
    assert (packet.body, packet.id, packet.ordering_key) == (b"", "", "\\xff")
    assert packet.headers == {"a": "\\xff"}
    assert read_packet(None, b"x", None) == Packet(body=b"x")
    assert read_packet(None, b"x", [("eo-ordering-key", b"k")]).ordering_key == "k"


def message(key: bytes | None = None, value: bytes | None = b"x", headers: Any = None, offset: int = 7) -> Any:
    fields = {"partition": 3, "offset": offset, "key": key, "value": value, "headers": headers, "error": None}
    return SimpleNamespace(**{name: partial(lambda value: value, value) for name, value in fields.items()})


def test_a_dead_letter_is_the_message_with_its_cause_under_a_key_of_its_own() -> None:
    headers = [("kept", b"1"), ("replaced", b"2"), ("none", None)]
    record = dead_letter_record(message(b"k", headers=headers), {"replaced": "new"})
    assert record.key == b"3-7"
    assert record.headers == [("kept", b"1"), ("replaced", b"new"), ("eo-ordering-key", b"k")]
    assert dead_letter_record(message(value=None), {}) == KafkaRecord(b"3-7", b"", [])


# -- producing


class Producer:
    """The driver's producer. ``reports`` is the error of each record in its delivery report; "" : there is none."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.reports: list[Any] = []
        self.refuses: dict[bytes, Exception] = {}
        self.calls: list[str] = []
        self.produced: list[bytes] = []
        self._pending: list[Callable[[], None]] = []

    def produce(self, topic: str, value: bytes, key: bytes, *, on_delivery: Any, headers: Any, timestamp: int) -> None:
        if value in self.refuses:
            raise self.refuses[value]
        self.produced.append(value)
        error = self.reports.pop(0) if self.reports else None
        if error != "":
            self._pending.append(lambda: on_delivery(error, None))

    def flush(self, timeout: float) -> int:
        self.calls.append("flush")
        for report in self._pending:
            report()
        self._pending.clear()
        return 0

    def purge(self) -> None:
        self.calls.append("purge")


class ClusterWithProducer(KafkaCluster, frozen=True, kw_only=True):
    """A cluster whose client is a stand-in."""

    clients: list[Producer]

    def make_client(self, kind: Any, on_error: Callable[[Any], None], config: dict[str, Any]) -> Any:
        self.clients.append(Producer(config))
        return self.clients[-1]


class ProducerUnderTest:
    def __init__(self, url: str = "kafka://h?timeout=50ms", *, idempotent: bool = True) -> None:
        known = cluster_at(url)
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        self.clients: list[Producer] = []
        self.producer = ConfirmedProducer(ClusterWithProducer(clients=self.clients, **fields), idempotent=idempotent)
        self.client: Producer = self.producer._open()
        self.producer._producer = self.client

    def send(self, *values: bytes) -> list[Any]:
        return self.producer._send("q", [KafkaRecord(None, value, []) for value in values])


def test_a_producer_waits_for_all_replicas() -> None:
    config = ProducerUnderTest("kafka://h?timeout=2s&max_body=10", idempotent=False).client.config
    assert (config["acks"], config["enable.idempotence"]) == ("all", False)
    assert (config["message.timeout.ms"], config["topic.metadata.propagation.max.ms"]) == (2000, 2000)
    assert config["message.max.bytes"] == 65_546
    assert ProducerUnderTest("kafka://h").client.config["topic.metadata.propagation.max.ms"] == 5000


def test_f44_each_record_has_the_outcome_of_its_own_report() -> None:
    under_test = ProducerUnderTest()
    under_test.client.reports = [None, error_of("MSG_SIZE_TOO_LARGE"), None]
    outcomes = under_test.send(b"a", b"b", b"c")
    assert [type(outcome) for outcome in outcomes] == [type(None), ConfigurationError, type(None)]
    assert "purge" not in under_test.client.calls
    under_test.send(b"d")
    assert len(under_test.clients) == 1  # the same client goes on


def test_f44_a_record_that_is_refused_before_it_is_sent_does_not_stop_those_behind_it() -> None:
    under_test = ProducerUnderTest()
    under_test.client.refuses = {b"b": KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))}
    outcomes = under_test.send(b"a", b"b", b"c")
    assert [type(outcome) for outcome in outcomes] == [type(None), ConfigurationError, type(None)]
    assert under_test.client.produced == [b"a", b"c"]


def test_f45_a_record_without_a_report_is_not_said_to_be_sent_and_does_not_arrive_later() -> None:
    under_test = ProducerUnderTest()
    under_test.client.reports = [None, ""]
    outcomes = under_test.send(b"a", b"b")
    assert [type(outcome) for outcome in outcomes] == [type(None), BrokerUnavailable]
    assert under_test.client.calls[-2:] == ["purge", "flush"]
    under_test.send(b"c")
    assert len(under_test.clients) == 2


def test_a_full_queue_of_the_client_is_an_unconfirmed_record() -> None:
    under_test = ProducerUnderTest()
    under_test.client.refuses = {b"b": BufferError("full")}
    outcomes = under_test.send(b"a", b"b")
    assert [type(outcome) for outcome in outcomes] == [type(None), BrokerUnavailable]


def test_where_nothing_is_known_the_call_fails() -> None:
    under_test = ProducerUnderTest()
    under_test.client.reports = ["", ""]
    with pytest.raises(BrokerUnavailable, match="did not confirm"):
        under_test.send(b"a", b"b")


def test_a_cluster_that_refuses_the_client_is_a_configuration_error() -> None:
    under_test = ProducerUnderTest()
    under_test.client.reports = [""]
    under_test.producer._handle_error(error_of("TOPIC_AUTHORIZATION_FAILED"))
    with pytest.raises(ConfigurationError, match="ACLs"):
        under_test.send(b"a")
    assert under_test.send(b"b") == [None]  # by a new client, which was not refused


@pytest.mark.parametrize(("code", "is_fatal", "is_kept"), [("_TRANSPORT", False, False), ("_TRANSPORT", True, True)])
def test_only_errors_that_do_not_pass_end_the_client(code: str, is_fatal: bool, is_kept: bool) -> None:
    under_test = ProducerUnderTest()
    under_test.producer._handle_error(SimpleNamespace(name=lambda: code, str=lambda: "x", fatal=lambda: is_fatal))
    assert (under_test.producer._refusal is not None) == is_kept


def test_nothing_to_send_asks_the_cluster_for_nothing() -> None:
    under_test = ProducerUnderTest()
    assert under_test.send() == []
    assert under_test.client.calls == []


async def test_a_closed_producer_drops_its_client_and_opens_another() -> None:
    under_test = ProducerUnderTest()
    await under_test.producer.close()
    assert under_test.client.calls == ["purge", "flush"]
    assert await under_test.producer.send("q", [KafkaRecord(None, b"a", [])]) == [None]
    await under_test.producer.close()


# -- the index of dead letters


class Log:
    """The topic of dead letters, as its reader sees it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.assigned: list[int] = []

    def assign(self, partitions: Any) -> None:
        self.assigned.append(partitions[0].offset)

    def consume(self, count: int, timeout: float) -> list[Any]:
        end = message()
        end.error = lambda: SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)
        return [*(each for each in self.messages if each.offset() >= self.assigned[-1]), end]

    def close(self) -> None:
        pass


def dead_letters_in(*messages: Any) -> tuple[KafkaDeadLetters, Log]:
    dead_letters, log = KafkaDeadLetters(cluster_at(), "q", "g"), Log()
    log.messages = list(messages)
    dead_letters._client = log
    return dead_letters, log


async def test_dead_letters_are_those_without_a_tombstone_in_the_order_of_their_last_record() -> None:
    dead_letters, log = dead_letters_in(
        message(b"a", offset=0), message(b"b", offset=1), message(b"c", offset=2), message(b"a", offset=3)
    )
    assert await dead_letters.count() == 3
    log.messages += [message(b"b", None, offset=4)]
    assert [dead_letter.id for dead_letter in (await dead_letters.browse(9))[0]] == ["c", "a"]
    assert log.assigned[:2] == [0, 4]  # only what is new is read again
    await dead_letters.close()


async def test_dead_letters_are_listed_page_by_page() -> None:
    dead_letters, _ = dead_letters_in(*(message(b"%d" % n, offset=n) for n in range(3)))
    page, cursor = await dead_letters.browse(2)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["0", "1"], "1")
    page, cursor = await dead_letters.browse(2, cursor)
    assert ([dead_letter.id for dead_letter in page], cursor) == (["2"], None)
    assert await dead_letters.browse(2, "2") == ([], None)
    assert (await dead_letters.browse(3))[1] is None
    await dead_letters.close()


# -- topics


class Admin:
    """What `check_topics` reads about the topics."""

    refusal = None
    client = None

    def __init__(self, cluster: KafkaCluster) -> None:
        pass

    configs: dict[str, dict[str, str]]
    replica_count = 3

    def config(self, topic: str) -> dict[str, str]:
        return self.configs[topic]

    def replicas(self, topic: str) -> int:
        return self.replica_count


SAFE = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 86400 * 1000),
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
}


def check(
    monkeypatch: pytest.MonkeyPatch, url: str = "kafka://h", replicas: int = 3, **changes: dict[str, str]
) -> None:
    dead = {**SAFE, "cleanup.policy": "compact,delete", "retention.ms": "-1"}
    configs = {"q": {**SAFE, **changes.get("queue", {})}, "q.dead.g": {**dead, **changes.get("dead", {})}}
    monkeypatch.setattr(Admin, "configs", configs, raising=False)
    monkeypatch.setattr(Admin, "replica_count", replicas)
    monkeypatch.setattr(topics, "KafkaAdmin", Admin)
    topics.check_topics(cluster_at(url), "q", "g")


def test_topics_that_lose_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch)
    check(monkeypatch, "kafka://h?retention=unlimited", queue={"retention.ms": "-1"})
    check(monkeypatch, replicas=1, queue={"min.insync.replicas": "1"}, dead={"min.insync.replicas": "1"})
    check(monkeypatch, queue={"retention.ms": "0"})


@pytest.mark.parametrize(
    ("topic", "change", "said"),
    [
        ("queue", {"cleanup.policy": "compact,delete"}, "is compacted"),
        ("queue", {"unclean.leader.election.enable": "true"}, "unclean"),
        ("queue", {"min.insync.replicas": "1"}, "min.insync"),
        ("queue", {"retention.ms": str(7 * 86400 * 1000 + 1000)}, "retention=604801s"),
        ("queue", {"retention.ms": "-1"}, "retention=unlimited"),
        ("dead", {"min.insync.replicas": "1"}, "min.insync"),
        ("dead", {"cleanup.policy": "delete"}, "by age"),
        ("dead", {"retention.ms": "5"}, "by age"),
    ],
)
def test_topics_that_may_lose_messages_name_the_setting(
    monkeypatch: pytest.MonkeyPatch, topic: str, change: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check(monkeypatch, **{topic: change})


class Metadata:
    """Answers a request for metadata about a topic, by turns."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.polls = 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(topics={topic: SimpleNamespace(error=answer)})

    def poll(self, timeout: float) -> None:
        self.polls += 1


def wait_for_topic(client: Metadata, url: str = "kafka://h?timeout=20ms", refusal: Exception | None = None) -> None:
    topics.wait_for_topic(client, cluster_at(url), "q", lambda: refusal)


def test_a_topic_is_waited_for_until_the_cluster_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "METADATA_PAUSE_S", 0.0)
    wait_for_topic(Metadata(error_of("UNKNOWN_TOPIC_OR_PART"), error_of("LEADER_NOT_AVAILABLE"), None), "kafka://h")
    down = KafkaException(KafkaError(KafkaError._TRANSPORT))
    client = Metadata(down, None)
    wait_for_topic(client, "kafka://h")
    assert client.polls == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("TOPIC_AUTHORIZATION_FAILED", ConfigurationError),
        ("UNKNOWN_TOPIC_OR_PART", ConfigurationError),
        ("LEADER_NOT_AVAILABLE", BrokerUnavailable),
    ],
)
def test_a_topic_that_does_not_come_is_an_error(
    monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception]
) -> None:
    monkeypatch.setattr(topics, "METADATA_PAUSE_S", 0.0)
    with pytest.raises(kind):
        wait_for_topic(Metadata(error_of(code)))


def test_a_cluster_that_does_not_answer_about_a_topic_is_unavailable_or_says_why() -> None:
    down = KafkaException(KafkaError(KafkaError._TRANSPORT))
    with pytest.raises(BrokerUnavailable):
        wait_for_topic(Metadata(down))
    with pytest.raises(ConfigurationError, match="denied"):
        wait_for_topic(Metadata(down), "kafka://h", ConfigurationError("denied"))


@pytest.mark.parametrize(
    ("code", "seconds"), [("TOPIC_AUTHORIZATION_FAILED", 0.0), ("UNKNOWN_TOPIC_OR_PART", 5.0), ("OTHER", 30.0)]
)
def test_how_long_a_topic_is_waited_for_depends_on_what_is_missing(code: str, seconds: float) -> None:
    assert topics._topic_timeout(code, cluster_at()) == seconds


class RefusingAdmin:
    """The driver's admin client. Every call fails with ``error``; a poll reports ``cause``, where there is one."""

    def __init__(self, on_error: Callable[[Any], None], error: str, cause: str) -> None:
        self._on_error, self._error, self._cause = on_error, KafkaException(error_of(error)), cause

    def describe_configs(self, subjects: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        failed: Future[Any] = Future()
        failed.set_exception(self._error)
        return dict.fromkeys(subjects, failed)

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.poll(0)
        raise self._error

    def poll(self, timeout: float) -> None:
        if self._cause:
            self._on_error(error_of(self._cause))


class ClusterWithAdmin(KafkaCluster, frozen=True, kw_only=True):
    error: str
    cause: str

    def make_client(self, kind: Any, on_error: Callable[[Any], None], config: dict[str, Any]) -> Any:
        return RefusingAdmin(on_error, self.error, self.cause)


def admin_that_fails(error: str, cause: str = "") -> topics.KafkaAdmin:
    known = cluster_at()
    fields = {name: getattr(known, name) for name in known.__struct_fields__}
    return topics.KafkaAdmin(ClusterWithAdmin(**fields, error=error, cause=cause))


@pytest.mark.parametrize(
    "ask",
    [lambda admin: admin.call("describe_configs", ["q"]), lambda admin: admin.replicas("q")],
    ids=["call", "list"],
)
@pytest.mark.parametrize(
    ("error", "cause", "raised", "said"),
    [
        ("REQUEST_TIMED_OUT", "", BrokerUnavailable, "REQUEST_TIMED_OUT"),
        ("REQUEST_TIMED_OUT", "SASL_AUTHENTICATION_FAILED", ConfigurationError, "SASL_AUTHENTICATION_FAILED"),
        ("REQUEST_TIMED_OUT", "_TRANSPORT", BrokerUnavailable, "REQUEST_TIMED_OUT"),
        ("TOPIC_AUTHORIZATION_FAILED", "", ConfigurationError, "TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_an_admin_call_that_fails_names_the_cause_that_will_not_pass(
    ask: Callable[[topics.KafkaAdmin], object], error: str, cause: str, raised: type[Exception], said: str
) -> None:
    with pytest.raises(raised, match=said):
        ask(admin_that_fails(error, cause))


def test_an_admin_call_ignores_the_error_that_its_caller_expects() -> None:
    admin = admin_that_fails("TOPIC_ALREADY_EXISTS")
    assert admin.call("describe_configs", ["q"], ignored_code="TOPIC_ALREADY_EXISTS") == []
