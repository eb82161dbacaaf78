"""Keys and results that cannot be read in the store: keyed hashing, and encryption bound to the identity.

With ``connect(url, private=SECRET)`` the store sees HMAC-SHA-256 of each key, and results and errors sealed with
AES-256-GCM. The seal is bound to scope, key and generation: a row copied onto another does not open. Scopes
stay readable. A lost secret makes results unreadable and every key new; changing it does the same.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

from effectonce.errors import CorruptRecord, InvalidOption, MissingDriver

VERSION = b"P"


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
        self._keys = hmac.digest(raw, b"effectonce keys v1", "sha256")
        self._cipher: Any = AESGCM(hmac.digest(raw, b"effectonce results v1", "sha256"))

    def hide(self, scope: str, key: str) -> str:
        """What the store sees instead of ``key``; it differs from scope to scope."""
        name = scope.encode()
        return hmac.digest(self._keys, b"%d:%b%b" % (len(name), name, key.encode()), hashlib.sha256).hex()

    def hide_fingerprints(self, scope: str, prints: bytes) -> bytes:
        """Payloads are guessable, so their fingerprints are keyed too; each keeps its version byte."""
        return b"".join(
            prints[at : at + 1] + hmac.digest(self._keys, scope.encode() + prints[at : at + 33], hashlib.sha256)
            for at in range(0, len(prints), 33)
        )

    def seal(self, plain: bytes | None, scope: str, hidden: str, generation: int) -> bytes | None:
        if plain is None:
            return None
        nonce = os.urandom(12)
        sealed: bytes = self._cipher.encrypt(nonce, plain, _associated_data(scope, hidden, generation))
        return VERSION + nonce + sealed

    def open(self, sealed: bytes | None, scope: str, hidden: str, generations: tuple[int, ...]) -> bytes | None:
        """The bytes that were sealed under this identity in one of ``generations``, else `CorruptRecord`."""
        if sealed is None:
            return None
        if sealed[:1] == VERSION:
            for generation in generations:
                try:
                    bound = _associated_data(scope, hidden, generation)
                    plain: bytes = self._cipher.decrypt(sealed[1:13], sealed[13:], bound)
                    return plain
                except (self._invalid, ValueError):
                    continue
        raise CorruptRecord(
            f"a private result in scope {scope!r} does not open: another secret, or a row that was moved or "
            "edited; check private= (to forget the record would run it again)"
        )

    def __repr__(self) -> str:
        return "Privacy(***)"


def _associated_data(scope: str, hidden: str, generation: int) -> bytes:
    name = scope.encode()
    return b"%d:%b%b:%d" % (len(name), name, hidden.encode(), generation)
