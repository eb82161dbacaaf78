"""A handler that charges a card at a gateway that takes idempotency keys, as Stripe and PayPal do."""

import effectonce as eo

store = eo.connect("memory://")


class Gateway:
    """Charges once for each key, and can be told to fail."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.down = False

    def charge(self, key: str, amount: int) -> str:
        if self.down:
            raise ConnectionError("the gateway is down")
        self.charges.setdefault(key, amount)
        return f"ch_{len(self.charges)}"


gateway = Gateway()


@eo.once(store, scope="charge", key="payment_id")
def charge(payment_id: str, amount: int) -> str:
    return gateway.charge(eo.current().provider_key("gateway"), amount)


def charged() -> int:
    """How many charges there are: what must not happen twice."""
    return len(gateway.charges)
