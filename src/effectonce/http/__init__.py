"""Idempotency-Key over HTTP: the middleware's settings. The middleware itself is in `asgi` and `wsgi`."""

from .problems import problem
from .protocol import Response, record_key
from .routes import Route

__all__ = ["Response", "Route", "problem", "record_key"]
