"""Idempotency-Key over HTTP: the middleware's settings. The middleware itself is in `asgi` and `wsgi`."""

from .problems import problem
from .profiles import ACP, AdCP
from .protocol import Response, record_key
from .routes import Route

__all__ = ["ACP", "AdCP", "Response", "Route", "problem", "record_key"]
