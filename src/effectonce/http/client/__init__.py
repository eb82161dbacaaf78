"""Clients: an Idempotency-Key for every call that changes something, the same for all retries of the call.

    client = httpx.Client(transport=IdempotentTransport())        # effectonce.http.client.for_httpx
    session.mount("https://", IdempotentAdapter())                # effectonce.http.client.for_requests

In a guarded handler the key is `current().provider_key(…)`: the same when the handler runs again. Elsewhere it is a new
UUID for each call. A call that already has an Idempotency-Key keeps it. With an `IntentLog`, each call is recorded as
an intent before it is sent.
"""

from .calls import Settings, step
from .intent_log import IntentLog

__all__ = ["IntentLog", "Settings", "step"]
