"""Intents (modes K and I): calls to outside APIs, recorded before they are sent."""

from .intents import Intents as Intents
from .operations import Intent as Intent
