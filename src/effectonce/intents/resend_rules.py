"""`ResendRules`: when an operation may be sent again, and under which key."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from effectonce.values.provider_keys import provider_key

from .logged_intent import LoggedIntent


class ResendRules(Struct, frozen=True, kw_only=True):
    """The conditions under which an operation may be sent again."""

    provider: str
    operation: str
    scope: str
    keyed: bool
    window_us: int  # how long the provider keeps a key
    margin_us: int  # stop resending this long before the window ends
    may_repeat: bool  # for a provider without keys: send again, at the risk of a second effect

    def intent_id(self, key: str, account: str, step: str) -> str:
        """Return the id of an intent."""
        return provider_key(self.provider, account, self.scope, self.operation, key, step)

    def provider_key(self, log: LoggedIntent) -> str:
        """Return the key that is sent to the provider. Another generation has another key."""
        generation = f"{log.generation}.{log.rounds}" if log.rounds else str(log.generation)
        return provider_key(self.provider, log.account, self.scope, self.operation, log.key, log.step, generation)

    def decide_next(self, log: LoggedIntent, now: int) -> Literal["send", "reconcile"]:
        """Decide whether to send, or to find out first because it was sent before and a resend is not safe."""
        if not log.send_count or (self.may_repeat and not self.keyed):
            return "send"
        key_is_kept = self.keyed and now < log.first_sent_at + self.window_us - self.margin_us
        return "send" if key_is_kept else "reconcile"
