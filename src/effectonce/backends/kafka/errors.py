"""The errors of a Kafka cluster as ours, by the names of librdkafka's error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from effectonce.backends.common.tls import tls_failed, tls_refusal_by_text
from effectonce.errors import BrokerUnavailable, ConfigurationError, EffectOnceError, show

if TYPE_CHECKING:
    from .endpoint import KafkaCluster

REFUSED_CODES = {
    "_AUTHENTICATION",
    "CLUSTER_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
}
MISSING_CODES = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
TOO_LARGE_CODES = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"}
INVALID_CODES = {
    "_INVALID_ARG",
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


#: librdkafka has no token to show. What issues tokens may only be away.
_NO_TOKEN_TEXTS: Final = ("OAuth token not set", "Failed to acquire SASL OAUTHBEARER token")


def is_refusal(error: Any, cluster: KafkaCluster) -> bool:
    """Whether the cluster refuses this client, so that trying again would not help."""
    if _has_no_token(error):
        return False
    return error.name() in REFUSED_CODES or _tls_refusal(error, cluster) is not None


def _has_no_token(error: Any) -> bool:
    return any(text in error.str() for text in _NO_TOKEN_TEXTS)


def _tls_refusal(error: Any, cluster: KafkaCluster) -> ConfigurationError | None:
    """Return our error where TLS has failed. librdkafka reports an alert of the broker as a broken connection."""
    name, text = error.name(), error.str()
    if name not in ("_SSL", "_TRANSPORT"):
        return None
    if "certificate verify failed" in text:  # also where it is for another name
        return ConfigurationError(
            f"the certificate of a broker of {cluster} is not trusted, or is for another name "
            f"({show(text, 300)}); add the authority that signed it as ca_file=, or connect by a name that it has"
        )
    return tls_refusal_by_text(text, str(cluster)) or (tls_failed(str(cluster), text) if name == "_SSL" else None)


def translate(error: Any, cluster: KafkaCluster, topic: str = "") -> EffectOnceError:
    """Return our error for a `KafkaError`, or for the `KafkaException` that wraps one."""
    if isinstance(error, Exception) and error.args:
        error = error.args[0]
    name, text = error.name(), show(error.str(), 200)
    if refusal := _tls_refusal(error, cluster):
        return refusal
    if _has_no_token(error):
        return BrokerUnavailable(f"there is no token for {cluster} ({text}); see the error of what issues it")
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
