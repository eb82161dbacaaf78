"""`KeyTerm`: what an operator searches for, and which keys it means."""

from __future__ import annotations

from msgspec import Struct

from effectonce.errors import MissingKey

from .identity import encode_key

_LAST_CHARACTER = "\U0010ffff"


class KeyTerm(Struct, frozen=True):
    """A key, or the first part of a composite key: ``ORDER-42`` means ``ORDER-42`` and ``ORDER-42:refund``, not
    ``ORDER-421``. With ``is_prefix`` it is what a key begins with."""

    text: str
    is_prefix: bool = False

    @property
    def ranges(self) -> list[tuple[str, str]]:
        """The keys as ranges in the order of their code points: each from its first key up to before the second. They
        let an index find the keys."""
        if self.is_prefix:
            return [(self.text, self.text + _LAST_CHARACTER)]
        # No key has a NUL, so nothing but the key itself is in the first range. ";" comes after ":".
        return [(self.text, self.text + "\x01"), (self.text + ":", self.text + ";")]

    def matches(self, key: str | None) -> bool:
        return key is not None and any(first <= key < end for first, end in self.ranges)


def parse_key_term(text: str) -> KeyTerm:
    """Read a term as an operator types it: with a star at its end it is a prefix. Raises `MissingKey` for an empty one,
    and `InvalidKey` for one that no key can be."""
    term = text.strip()
    key = term.removesuffix("*")
    if not key:
        raise MissingKey("search for a key, for the first part of a composite key, or for a prefix and *")
    return KeyTerm(encode_key(key), is_prefix=key != term)
