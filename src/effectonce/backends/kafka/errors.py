"""The errors of a Kafka cluster as ours, by the names of librdkafka's error codes."""

from __future__ import annotations

from typing import Any

from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, show

from .endpoint import KafkaCluster

REFUSED_CODES = {
    "_AUTHENTICATION",
    "_SSL",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
}
MISSING_CODES = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
TOO_LARGE_CODES = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"}
INVALID_CODES = {
    "GROUP_MAX_SIZE_REACHED",
    "INCONSISTENT_GROUP_PROTOCOL",
    "INVALID_CONFIG",
    "INVALID_PARTITIONS",
    "INVALID_RECORD",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_SESSION_TIMEOUT",
    "POLICY_VIOLATION",
    "TOPIC_EXCEPTION",
    "UNSUPPORTED_VERSION",
}


def translate(error: Any, cluster: KafkaCluster, topic: str = "") -> EffectOnceError:
    """Return our error for a `KafkaError`, or for the `KafkaException` that wraps one."""
    if isinstance(error, Exception) and error.args:
        error = error.args[0]
    name, text = error.name(), show(error.str(), 200)
    if name in REFUSED_CODES:
        return ConfigurationError(f"{cluster} refuses this client ({name}: {text}); check user, password, TLS and ACLs")
    if name in MISSING_CODES:
        return ConfigurationError(
            f"there is no topic {topic} at {cluster}; create it, for example with connect_broker(…).declare(queue)"
        )
    if name in TOO_LARGE_CODES:
        return ConfigurationError(
            f"the message is too large for {cluster} ({text}); raise max.message.bytes of topic {topic} and the "
            "option max_body, or send less"
        )
    if name in INVALID_CODES:
        return ConfigurationError(f"{cluster} refused the request ({name}: {text})")
    return BrokerUnavailable(f"{cluster} does not answer ({name}: {text})")
