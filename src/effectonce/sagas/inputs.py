"""The input of a saga: how it is stored, fingerprinted and decoded."""

from __future__ import annotations

from typing import Any, Final

from effectonce.core.codec import json_decoder, to_json
from effectonce.errors import ConfigurationError, InvalidKey, SagaChanged
from effectonce.values.fingerprint import fingerprints, sort_sets

MAX_INPUT_BYTES: Final = 256 * 1024

_decode_plain = json_decoder(Any)


class SagaInputs:
    """The inputs of one saga, all of one type."""

    def __init__(self, saga: str, type_: Any) -> None:
        self._saga = saga
        try:
            self._decode = json_decoder(type_)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"an input of type {type_} cannot be decoded: {error}") from error

    def freeze(self, input: Any) -> tuple[bytes, bytes]:
        """Return ``input`` as JSON, and its fingerprints. Raises `ConfigurationError` if it cannot be stored."""
        try:
            body = to_json(input)
            self._decode(body)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ConfigurationError(f"the input of a saga cannot be stored: {error}; nothing was done") from error
        if len(body) > MAX_INPUT_BYTES:
            raise ConfigurationError(
                f"an input of {len(body)} bytes is over the limit of {MAX_INPUT_BYTES}; nothing was done"
            )
        try:
            return body, fingerprints(input)
        except InvalidKey:  # it has no canonical form (keys that are not strings, say), but its JSON has
            return body, fingerprints(sort_sets(input, _decode_plain(body)))

    def decode(self, body: bytes) -> Any:
        """Decode a frozen input. Raises `SagaChanged` where its type no longer fits."""
        try:
            return self._decode(body)
        except (TypeError, ValueError) as error:
            raise SagaChanged(
                f"the input of a saga {self._saga} does not fit its type as it is defined now: {error}; let the old "
                "release finish it, or define an input that fits both"
            ) from error
