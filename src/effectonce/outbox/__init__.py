"""The transactional outbox: a message leaves if, and only if, the transaction of the caller commits."""

from .outbox import Outbox as Outbox
