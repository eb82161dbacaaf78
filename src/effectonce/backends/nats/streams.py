"""The streams of a queue: its own, and that of its dead letters. How they are named, declared and checked.

A queue is a work-queue stream: an acked message is removed, and an unacked one stays, whether or not a consumer exists
yet. Such a stream has one group of consumers. With ``retention=limits`` the stream keeps every message for ``max_age``,
and each group gets all of them. Then the server does not know whether some group still needs a message, so it must not
deduplicate.

The server writes a message to its file before it replies, and flushes the file later: a confirmed message survives the
death of the server, and a power cut of all of its servers only with ``sync_interval: always``.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, Literal

from msgspec import Struct

from effectonce.errors import BrokerUnavailable, ConfigurationError, InvalidOption, show
from effectonce.values.queue_names import require_name

from .connection import JetStreamRefusal, NatsConnection, NatsEndpoint

StreamRetention = Literal["workqueue", "limits"]

#: Error codes of JetStream.
NO_MESSAGE_FOUND: Final = 10037
ALREADY_DELETED: Final = (NO_MESSAGE_FOUND, 10043, 10057)  # also: no such sequence number, and nothing to delete
NS_PER_S: Final = 1_000_000_000
MIN_DELAY_VERSION: Final = (2, 12)
#: Settings by which a full stream drops messages, or refuses them.
SIZE_LIMITS: Final = ("max_msgs", "max_bytes", "max_msgs_per_subject")


class MissingStream(ConfigurationError):
    """A queue has no stream, or a group no consumer."""


class StreamDeclarations(Struct, frozen=True, kw_only=True):
    """How the streams of one broker are named and declared. Times are in seconds."""

    endpoint: NatsEndpoint
    retention: StreamRetention
    window: float
    dedup_window: float
    max_age: float
    replicas: int
    shared_stream: str = ""  # one that others have declared, for all queues

    @property
    def deduplicates(self) -> bool:
        """Whether the server deduplicates by id. It may only where a message that it has seen still waits, or is
        done."""
        return self.retention == "workqueue" and not self.shared_stream

    def stream_name(self, queue: str) -> str:
        return self.shared_stream or encode_name(queue)

    def dead_letter_stream(self, queue: str, group: str) -> str:
        """The name of the dead-letter stream. Where there can be several groups, each has its own."""
        return encode_name(f"{queue}.dead.{group}" if self.retention == "limits" else f"{queue}.dead")

    def dead_letter_subject(self, queue: str, group: str) -> str:
        return f"eo.dead.{self.dead_letter_stream(queue, group)}"

    async def declare(self, connection: NatsConnection, queue: str, group: str | None) -> None:
        """Declare the queue's stream, and with ``group`` its dead letters and its durable consumer."""
        name = self.stream_name(queue)
        config: dict[str, Any] = {
            "name": name,
            "subjects": [queue],
            "retention": self.retention,
            "duplicate_window": round(self.dedup_window * NS_PER_S),
        }
        if self.retention == "limits":
            config["max_age"] = round(self.max_age * NS_PER_S)
        if self.shared_stream:
            await self._get_stream_config(connection, name, queue)
        else:
            self._require_retention(await self._declare_stream(connection, config))
        if group is None:
            return
        await self.declare_dead_letters(connection, queue, group)
        consumer = {
            "durable_name": encode_name(group),
            "filter_subject": queue,
            "ack_policy": "explicit",
            "ack_wait": round(self.window * NS_PER_S),
            "deliver_policy": "all",
            "max_deliver": -1,
            "max_ack_pending": -1,
        }
        try:
            path = f"CONSUMER.DURABLE.CREATE.{name}.{encode_name(group)}"
            await connection.call_jetstream(path, {"stream_name": name, "config": consumer})
        except JetStreamRefusal as error:
            raise ConfigurationError(
                f"the group {show(group)} cannot be declared for {show(queue)} ({error}); a work queue has one group "
                "of consumers: use its name, or retention=limits, or delete the old one (nats consumer rm)"
            ) from error

    async def allow_delays(self, connection: NatsConnection, queue: str) -> None:
        """Let the queue's stream take delayed messages, which need a setting and subjects of their own.

        The server does not allow that together with ``discard: new``, which makes no difference to a stream without
        limits. Raises `ConfigurationError` for one with limits, for one that others have declared, and for a server
        before 2.12.
        """
        if connection.server_version < MIN_DELAY_VERSION:  # it would take no notice of the setting
            raise ConfigurationError(
                f"{self.endpoint.shown} cannot delay messages, which needs NATS 2.12: upgrade it, or send them through "
                "an outbox: outbox.send(conn, message, delay=…)"
            )
        config = await self._get_stream_config(connection, self.stream_name(queue), queue)
        name, delayed = config["name"], f"{delay_subject(config['name'])}.*"
        if config.get("allow_msg_schedules") and delayed in config["subjects"]:
            return
        if self.shared_stream or max(config.get(limit, -1) for limit in SIZE_LIMITS) > 0:
            raise ConfigurationError(
                f"the stream {show(name)} has limits, or is declared by others, so its settings stay as they are: for "
                f"delayed messages add the subject {delayed} and allow_msg_schedules to it, or send them through an "
                "outbox"
            )
        subjects = [*config["subjects"], delayed]
        updated = {**config, "subjects": subjects, "allow_msg_schedules": True, "discard": "old", "deny_purge": False}
        await connection.call_jetstream(f"STREAM.UPDATE.{name}", updated)

    async def declare_dead_letters(self, connection: NatsConnection, queue: str, group: str) -> None:
        subject = self.dead_letter_subject(queue, group)
        await self._declare_stream(
            connection, {"name": self.dead_letter_stream(queue, group), "subjects": [subject], "retention": "limits"}
        )

    async def _declare_stream(self, connection: NatsConnection, config: dict[str, Any]) -> dict[str, Any]:
        """Create the stream where it is missing, and return its settings. A full stream refuses messages rather than
        dropping old ones."""
        name = config["name"]
        try:
            return await self._get_stream_config(connection, name, name)
        except MissingStream:
            full_config = {**config, "storage": "file", "discard": "new", "num_replicas": self.replicas}
            return dict((await connection.call_jetstream(f"STREAM.CREATE.{name}", full_config))["config"])

    def _require_retention(self, config: dict[str, Any]) -> None:
        if config["retention"] != self.retention:
            raise ConfigurationError(
                f"the stream {show(config['name'])} has retention {config['retention']}, and the URL says "
                f"retention={self.retention}; correct the URL, or name another stream with stream="
            )

    async def check(self, connection: NatsConnection, queue: str, group: str) -> None:
        """Raise `ConfigurationError` where the queue's stream or consumer would lose messages."""
        name = self.stream_name(queue)
        config = await self._get_stream_config(connection, name, queue)
        await self._get_stream_config(connection, self.dead_letter_stream(queue, group), queue)
        if not self.shared_stream:
            self._require_retention(config)
        limited = config.get("discard") != "new" and max(config.get("max_msgs", -1), config.get("max_bytes", -1)) > 0
        if config["retention"] == "workqueue" and (limited or config.get("max_age", 0) > 0):
            raise ConfigurationError(
                f"the stream {show(name)} has limits that delete messages before they are handled; set discard=new, "
                "and no max_age"
            )
        if config["storage"] != "file":
            raise ConfigurationError(
                f"the stream {show(name)} is kept in memory, and a restart of its server would lose it; make it again "
                "with storage=file"
            )
        try:
            consumer = (await connection.call_jetstream(f"CONSUMER.INFO.{name}.{encode_name(group)}"))["config"]
        except JetStreamRefusal as error:
            raise missing_stream(self.endpoint, queue) from error
        if consumer.get("ack_policy") != "explicit" or consumer.get("max_deliver", -1) != -1:
            raise ConfigurationError(
                f"the consumer {show(group)} of {show(name)} has ack_policy {consumer.get('ack_policy')} and "
                f"max_deliver {consumer.get('max_deliver')}: it would lose messages; set them to explicit and -1"
            )

    async def explain_silence(self, connection: NatsConnection, queue: str, group: str | None = None) -> Exception:
        """Return the error for a queue for which no server answers: `MissingStream` if its stream, or the consumer of
        ``group``, is not there; else `BrokerUnavailable`, since its replicas have no leader yet."""
        name = self.stream_name(queue)
        paths = [f"STREAM.INFO.{name}", *([f"CONSUMER.INFO.{name}.{encode_name(group)}"] if group else [])]
        try:
            for path in paths:
                await connection.call_jetstream(path)
        except JetStreamRefusal as error:
            return missing_stream(self.endpoint, queue) if error.status == 404 else error
        except BrokerUnavailable as error:
            return error
        return no_leader(self.endpoint, queue)

    async def _get_stream_config(self, connection: NatsConnection, name: str, queue: str) -> dict[str, Any]:
        try:
            return dict((await connection.call_jetstream(f"STREAM.INFO.{name}"))["config"])
        except JetStreamRefusal as error:
            if error.status != 404:
                raise
            raise missing_stream(self.endpoint, queue) from error


def delay_subject(stream: str) -> str:
    """The subject under which delayed messages wait in their stream, each on one of its own."""
    return f"eo.delayed.{stream}"


def missing_stream(endpoint: NatsEndpoint, queue: str) -> MissingStream:
    return MissingStream(
        f"{endpoint.shown} has no stream or no consumers for {show(queue)}; start its worker, or declare it: "
        f"connect_broker(url).declare({show(queue)!r})"
    )


def no_leader(endpoint: NatsEndpoint, queue: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"{endpoint.shown} has the stream of {show(queue)}, but no server leads it at the moment")


def require_subject(queue: str) -> str:
    """Return ``queue`` if it can be a subject; else raise `InvalidOption`."""
    if "" in require_name(queue).split("."):
        raise InvalidOption(
            f"{show(queue)!r} cannot be a queue on NATS; a dot in its name must stand between two words"
        )
    return queue


def encode_name(name: str) -> str:
    """Turn ``name`` into a name that a stream or a consumer can have. Different names stay different."""
    plain = re.sub(r"[^A-Za-z0-9_-]", lambda match: f"={ord(match[0]):02X}", name)
    return plain if len(plain) <= 200 else f"{plain[:160]}=={hashlib.sha256(name.encode()).hexdigest()[:32]}"
