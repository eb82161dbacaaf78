"""The front door: a client that got no answer asks again with the same Idempotency-Key, and there is one order."""

from typing import Annotated

import orders
from fastapi import Depends, FastAPI, Header, HTTPException, Response
from orders import Basket, Order, OrderRow

from effectonce.integrations.fastapi import RESPONSES, answer_problems, request_key

app = FastAPI(title="Shop")
answer_problems(app)


def customer(authorization: Annotated[str, Header()] = "") -> str:
    """In its place: whatever knows your callers. A key is looked up for its caller only."""
    if not authorization.startswith("Bearer "):
        raise HTTPException(401, "who are you?")
    return authorization.removeprefix("Bearer ")


@app.post("/orders", status_code=201, responses=RESPONSES)
def place(
    basket: Basket,
    customer: Annotated[str, Depends(customer)],
    key: Annotated[str, Depends(request_key(customer))],
    response: Response,
) -> Order:
    outcome = orders.place(key, customer, basket)
    if outcome.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return outcome.value


@app.get("/orders/{id}")
def look(id: str, customer: Annotated[str, Depends(customer)]) -> dict[str, str | None]:
    with orders.transaction() as session:
        row = session.get(OrderRow, id)
        if row is None or row.customer != customer:
            raise HTTPException(404, "no such order of yours")
        return {"id": row.id, "state": row.state, "charge": row.charge, "refund": row.refund}
