"""A wrapper of another object, the base of those that record its calls or make them fail."""

from __future__ import annotations

from typing import Any


class Wrapper:
    """Delegates to ``inner`` what a subclass does not define."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)
