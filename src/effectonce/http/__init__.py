"""Idempotency-Key over HTTP: the middleware's settings. The middleware itself is in `asgi` and `wsgi`."""

from .protocol import Response, problem, record_key
from .routes import Route

__all__ = ["Response", "Route", "problem", "record_key"]
