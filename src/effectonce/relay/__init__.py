"""The relay: it publishes what the outbox holds to a broker."""

from .relay import Relay as Relay
