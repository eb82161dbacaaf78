"""Access to the dashboard: tokens, roles, login sessions, and protection against forged requests (F64)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from effectonce.errors import ConfigurationError, show

Role = Literal["viewer", "operator"]

COOKIE_PREFIX: Final = "effectonce_session"
SESSION_LIFETIME_S: Final = 12 * 3600
MIN_TOKEN_CHARACTERS: Final = 16

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")

#: Only our own scripts, styles and images, no frames, and no form that posts elsewhere. The referrer policy is not
#: ``no-referrer``: browsers would then send ``Origin: null`` with our own forms.
SECURITY_HEADERS: Final = {
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


class LoginSession(Struct, frozen=True):
    """A visitor who has logged in, and the role of the token they used."""

    id: str  # the cookie's value
    csrf: str  # what every form of the session carries, and pages of other sites cannot know
    who: str
    role: Role
    ends_at: float  # seconds since the epoch

    @property
    def can_act(self) -> bool:
        return self.role == "operator"

    @property
    def audit_name(self) -> str:
        """The visitor's name in the audit log."""
        return f"{self.who} ({self.role}, dashboard)"


class Access:
    """Two tokens, the sessions that they open, and the host names that requests may use.

    Sessions are kept in this process: a restart ends them all.
    """

    def __init__(self, *, operator: str, viewer: str | None = None, hosts: Iterable[str] = LOOPBACK_HOSTS) -> None:
        for token in filter(None, (operator, viewer)):
            if len(token) < MIN_TOKEN_CHARACTERS:
                raise ConfigurationError(
                    f"a dashboard token needs at least {MIN_TOKEN_CHARACTERS} characters: python -c 'import secrets; "
                    "print(secrets.token_urlsafe())'"
                )
        if operator == viewer:
            raise ConfigurationError("the viewer's token equals the operator's: give each role its own")
        self._tokens: list[tuple[Role, bytes]] = [("operator", _digest(operator))]
        if viewer is not None:
            self._tokens.append(("viewer", _digest(viewer)))
        self._hosts = frozenset(host.lower() for host in hosts)
        self._sessions: dict[str, LoginSession] = {}  # by id

    # -- sessions

    def log_in(self, token: str, who: str) -> LoginSession | None:
        """Open a session; None if the token is wrong. It takes the same time for every token."""
        digest, role = _digest(token), None
        for token_role, expected in self._tokens:
            if hmac.compare_digest(digest, expected):
                role = token_role
        if role is None:
            return None
        now = time.time()
        self._sessions = {id: session for id, session in self._sessions.items() if session.ends_at > now}
        session = LoginSession(
            id=secrets.token_hex(32),
            csrf=secrets.token_hex(32),
            who=show(who.strip(), 60),
            role=role,
            ends_at=now + SESSION_LIFETIME_S,
        )
        self._sessions[session.id] = session
        return session

    def find_session(self, id: str | None) -> LoginSession | None:
        """Return the session of a cookie; None if there is none, or it has ended."""
        session = self._sessions.get(id or "")
        return session if session is not None and session.ends_at > time.time() else None

    def log_out(self, session: LoginSession) -> None:
        self._sessions.pop(session.id, None)

    # -- requests

    def is_host_allowed(self, headers: Mapping[str, str]) -> bool:
        """Tell whether the request names one of our hosts. Another name that resolves to us is DNS rebinding."""
        return _host(f"//{headers.get('host', '')}") in self._hosts

    def is_own_page(self, headers: Mapping[str, str]) -> bool:
        """Tell whether one of our pages sent the request, as far as the browser names the sender."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            return False
        return site in (None, "same-origin", "none")

    def is_csrf_valid(self, session: LoginSession, csrf: str) -> bool:
        return hmac.compare_digest(csrf.encode(), session.csrf.encode())


def require_safe_bind(host: str, *, remote: bool, token_given: bool) -> None:
    """Refuse to listen to other machines, unless the caller asks for it and has chosen a token."""
    if host.strip("[]") in LOOPBACK_HOSTS:
        return
    if not remote:
        raise ConfigurationError(
            f"{show(host)} can be reached from other machines: add --allow-remote if you mean that (behind TLS), or "
            "leave out --host"
        )
    if not token_given:
        raise ConfigurationError(
            "a dashboard that other machines can reach needs a token that you choose: set EFFECTONCE_DASHBOARD_TOKEN"
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
