"""The beginnings of the scopes that intents and sagas give to their records. Other scopes are those of guards."""

from __future__ import annotations

from typing import Final

INTENT_SCOPE_PREFIX: Final = "intents/"
SAGA_SCOPE_PREFIX: Final = "saga/"
