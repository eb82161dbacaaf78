"""Who may look and who may act: tokens, sessions, and what every request must bring (F64)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from effectonce.errors import ConfigurationError, show

Role = Literal["viewer", "operator"]

COOKIE: Final = "effectonce_session"
LIFETIME: Final = 12 * 3600
SHORTEST: Final = 16
"""Characters of the shortest token that is accepted."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

#: No script, style, image or frame but our own files, and no form that leads elsewhere. Not ``no-referrer``: browsers
#: would then send ``Origin: null`` with our own forms.
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Session(Struct, frozen=True):
    """Who has logged in, and as what."""

    id: str
    who: str
    role: Role
    until: int  # seconds since the epoch

    @property
    def acts(self) -> bool:
        return self.role == "operator"

    @property
    def signature(self) -> str:
        """Who the audit log names."""
        return f"{self.who} ({self.role}, dashboard)"


class Access:
    """Two tokens, the sessions that they open, and the hosts by which the dashboard may be addressed.

    Sessions are signed under a key of this process: a restart ends them all.
    """

    def __init__(self, *, operator: str, viewer: str | None = None, hosts: Iterable[str] = LOOPBACK) -> None:
        for token in filter(None, (operator, viewer)):
            if len(token) < SHORTEST:
                raise ConfigurationError(
                    f"a dashboard token needs at least {SHORTEST} characters: python -c 'import secrets; "
                    "print(secrets.token_urlsafe())'"
                )
        if operator == viewer:
            raise ConfigurationError("the viewer's token is the operator's: give each role its own")
        self._tokens: list[tuple[Role, bytes]] = [("operator", _digest(operator))]
        if viewer is not None:
            self._tokens.append(("viewer", _digest(viewer)))
        self._hosts = frozenset(host.lower() for host in hosts)
        self._key = secrets.token_bytes(32)
        self._ended: dict[str, int] = {}

    # -- sessions

    def log_in(self, token: str, who: str) -> str | None:
        """The cookie of a new session; None where the token is neither. The time it takes says nothing about either."""
        given, role = _digest(token), None
        for each, wanted in self._tokens:
            if hmac.compare_digest(given, wanted):
                role = each
        if role is None:
            return None
        session = Session(secrets.token_hex(16), show(who.strip(), 60), role, int(time.time()) + LIFETIME)
        body = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return f"{body}.{self._sign('session', body)}"

    def session_of(self, cookie: str | None) -> Session | None:
        """The session that ``cookie`` stands for; None where it is over, or not of our making."""
        body, _, signature = (cookie or "").partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        session = msgspec.json.decode(base64.urlsafe_b64decode(body), type=Session)
        return session if session.until > time.time() and session.id not in self._ended else None

    def log_out(self, session: Session) -> None:
        now = time.time()
        self._ended = {id: until for id, until in self._ended.items() if until > now} | {session.id: session.until}

    def csrf(self, session: Session) -> str:
        """What every form of ``session`` carries, and no other page can know."""
        return self._sign("csrf", session.id)

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()

    # -- requests

    def addressed(self, headers: Mapping[str, str]) -> bool:
        """Whether the request names a host of ours: another name that leads here is DNS rebinding."""
        return _host(f"//{headers.get('host', '')}") in self._hosts

    def own_page(self, headers: Mapping[str, str]) -> bool:
        """Whether a page of ours sent it, as far as the browser says who did."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            return False
        return site in (None, "same-origin", "none")

    def confirmed(self, session: Session, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.csrf(session).encode())


def require_safe_bind(host: str, *, remote: bool, token_given: bool) -> None:
    """Only this machine, unless somebody asked for more and brought a token of their own."""
    if host.strip("[]") in LOOPBACK:
        return
    if not remote:
        raise ConfigurationError(
            f"{show(host)} can be reached from other machines: say --allow-remote if that is meant (behind TLS), or "
            "leave --host away"
        )
    if not token_given:
        raise ConfigurationError(
            "a dashboard that others can reach needs a token of yours: set EFFECTONCE_DASHBOARD_TOKEN"
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
