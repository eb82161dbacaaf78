"""The input of a saga: how it is written down, known again, and read back."""

from __future__ import annotations

from typing import Any, Final

from effectonce.core.codec import json_decoder, to_json
from effectonce.errors import ConfigurationError, InvalidKey, SagaChanged
from effectonce.values.fingerprint import fingerprints, sets_sorted

MAX_INPUT: Final = 256 * 1024

_plain = json_decoder(Any)


class Inputs:
    """The inputs of one saga, all of one type."""

    def __init__(self, saga: str, type_: Any) -> None:
        self._saga = saga
        try:
            self._read = json_decoder(type_)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"an input of type {type_} cannot be read back: {error}") from error

    def freeze(self, input: Any) -> tuple[bytes, Any, bytes]:
        """``input`` as JSON, as that reads back, and its fingerprints; `ConfigurationError` where that cannot be."""
        try:
            body = to_json(input)
            read_back = self._read(body)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ConfigurationError(
                f"the input of a saga cannot be written down: {error}; nothing was done"
            ) from error
        if len(body) > MAX_INPUT:
            raise ConfigurationError(
                f"an input of {len(body)} bytes is over the limit of {MAX_INPUT}; nothing was done"
            )
        try:
            return body, read_back, fingerprints(input)
        except InvalidKey:  # it has no canonical form (names that are no text, say), but its JSON has
            return body, read_back, fingerprints(sets_sorted(input, _plain(body)))

    def read(self, body: bytes) -> Any:
        """The input as it was frozen; `SagaChanged` where it reads so no longer."""
        try:
            return self._read(body)
        except (TypeError, ValueError) as error:
            raise SagaChanged(
                f"the input of a saga {self._saga} does not read as it is defined now: {error}; let the old release "
                "finish it, or define an input that reads both"
            ) from error
