"""The client's side: a key for every call that changes something, kept over its retries.

    client = httpx.Client(transport=IdempotentTransport())        # effectonce.http.client.for_httpx
    session.mount("https://", IdempotentAdapter())                # effectonce.http.client.for_requests

In a guarded handler the key is `current().provider_key(…)`: the same when the handler runs again. Elsewhere it is a new
UUID for each call. A call that carries an Idempotency-Key keeps it. With an `IntentLog`, each is written down before it
is made.
"""

from .calls import Settings, step
from .intent_log import IntentLog

__all__ = ["IntentLog", "Settings", "step"]
