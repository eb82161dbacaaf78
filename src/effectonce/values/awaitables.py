"""`maybe_await`: for the results of functions that may be sync or async."""

from __future__ import annotations

from typing import Any


async def maybe_await(returned: Any) -> Any:
    """The result of a sync or async function, from what it ``returned``. Suspends only if that is an awaitable."""
    return await returned if hasattr(returned, "__await__") else returned
