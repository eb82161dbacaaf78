"""Values that may have to be awaited first."""

from __future__ import annotations

from typing import Any


async def maybe_await(returned: Any) -> Any:
    """The result of a function that is sync or async, from what it has ``returned``. It suspends for an async one
    only."""
    return await returned if hasattr(returned, "__await__") else returned
