"""Keys and results that cannot be read in the store: keyed hashing, and encryption bound to the identity.

With ``connect(url, private=SECRET)`` the store sees HMAC-SHA-256 of each key, and results and errors sealed with
AES-256-GCM. The seal is bound to scope, key and generation: a row copied onto another does not open. Scopes
stay readable. A lost secret makes results unreadable and every key new; changing it does the same.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from typing import Any

from effectonce.errors import CorruptRecord, InvalidOption, MissingDriver
from effectonce.values.fingerprint import split_fingerprints

SEALED_PREFIX = b"P"  # the first byte of sealed values; it names the format
_HIDDEN_KEY = re.compile("[0-9a-f]{64}")


class Privacy:
    """Hides keys and seals bytes under one secret."""

    def __init__(self, secret: str | bytes) -> None:
        if not isinstance(secret, str | bytes):
            raise InvalidOption("private= takes a secret as str or bytes; make one with secrets.token_hex(32)")
        raw = secret.encode() if isinstance(secret, str) else secret
        if len(raw) < 16:
            raise InvalidOption("private= needs a secret of at least 16 bytes; make one with secrets.token_hex(32)")
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise MissingDriver("private= needs cryptography: pip install 'effectonce[private]'") from error
        self._invalid = InvalidTag
        self._hash_secret = hmac.digest(raw, b"effectonce keys v1", "sha256")
        self._cipher: Any = AESGCM(hmac.digest(raw, b"effectonce results v1", "sha256"))

    def hide(self, scope: str, key: str) -> str:
        """The hash that the store sees instead of ``key``. Another scope has another hash of the same key."""
        name = scope.encode()
        return hmac.digest(self._hash_secret, b"%d:%b%b" % (len(name), name, key.encode()), hashlib.sha256).hex()

    def hide_fingerprints(self, scope: str, fingerprints: bytes) -> bytes:
        """Hash fingerprints, too, since payloads are guessable. Each keeps its version byte."""
        return b"".join(
            fingerprint[:1] + hmac.digest(self._hash_secret, scope.encode() + fingerprint, hashlib.sha256)
            for fingerprint in split_fingerprints(fingerprints)
        )

    def seal(self, plain: bytes | None, scope: str, hidden_key: str, generation: int) -> bytes | None:
        """Encrypt ``plain`` so that it opens only under this identity and generation. None stays None."""
        if plain is None:
            return None
        nonce = os.urandom(12)
        sealed: bytes = self._cipher.encrypt(nonce, plain, _associated_data(scope, hidden_key, generation))
        return SEALED_PREFIX + nonce + sealed

    def open(self, sealed: bytes | None, scope: str, hidden_key: str, generations: tuple[int, ...]) -> bytes | None:
        """Decrypt what was sealed under this identity in one of ``generations``. Raises `CorruptRecord` otherwise."""
        if sealed is None:
            return None
        if sealed[:1] == SEALED_PREFIX:
            for generation in generations:
                try:
                    bound = _associated_data(scope, hidden_key, generation)
                    plain: bytes = self._cipher.decrypt(sealed[1:13], sealed[13:], bound)
                    return plain
                except (self._invalid, ValueError):
                    continue
        raise CorruptRecord(
            f"a private result in scope {scope!r} does not open: another secret, or a row that was moved or "
            "edited; check private= (forgetting the record would run it again)"
        )

    def __repr__(self) -> str:
        return "Privacy(***)"


def looks_hidden(key: str) -> bool:
    """Whether ``key`` may be one that `Privacy.hide` made. A key that is a hash itself looks the same."""
    return _HIDDEN_KEY.fullmatch(key) is not None


def _associated_data(scope: str, hidden_key: str, generation: int) -> bytes:
    name = scope.encode()
    return b"%d:%b%b:%d" % (len(name), name, hidden_key.encode(), generation)
