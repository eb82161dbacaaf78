"""The transactional inbox (mode T): the dedup row commits in the transaction of the caller."""

from .inbox import Inbox as Inbox
