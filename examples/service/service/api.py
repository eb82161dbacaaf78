"""The front door: a client that got no answer asks again with the same Idempotency-Key, and there is one order.

uvicorn service.api:app
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response

from effectonce.integrations.fastapi import RESPONSES, answer_problems, request_key

from . import orders, telemetry
from .database import Order, sessions, store
from .orders import Basket, OrderPlaced

app = FastAPI(title="Orders")
answer_problems(app)
telemetry.watch(store)


@app.middleware("http")
async def trace_request(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Begin the trace that everything after this request is a part of, or continue the client's."""
    with telemetry.server_span(f"{request.method} {request.url.path}", request.headers):
        return await answer(request)


def customer(authorization: Annotated[str, Header()] = "") -> str:
    """In its place: whatever knows your callers. A key is looked up for its caller only."""
    if not authorization.startswith("Bearer "):
        raise HTTPException(401, "who are you?")
    return authorization.removeprefix("Bearer ")


Customer = Annotated[str, Depends(customer)]


@app.post("/orders", status_code=201, responses=RESPONSES)
async def place(
    basket: Basket, customer: Customer, key: Annotated[str, Depends(request_key(customer))], response: Response
) -> OrderPlaced:
    outcome = await orders.place(key, customer, basket)
    if outcome.replayed:
        response.headers["Idempotent-Replayed"] = "true"
    return outcome.value


@app.get("/orders/{order}")
async def look(order: str, customer: Customer) -> dict[str, str | None]:
    async with sessions() as session:
        row = await session.get(Order, order)
    if row is None or row.customer != customer:
        raise HTTPException(404, "no such order of yours")
    return {"order": row.id, "state": row.state, "charge": row.charge, "refund": row.refund}


@app.get("/metrics")
def metrics() -> Response:
    return Response(telemetry.metrics.text(), media_type=telemetry.metrics.content_type)
