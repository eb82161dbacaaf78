"""FastAPI: the guard below the route's decorator, its parameters read and its results written as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header
from fastapi.responses import JSONResponse
from httpx import ASGITransport, AsyncClient
from pydantic import BaseModel

import effectonce as eo


class Payment(BaseModel):
    id: str
    amount: int


class Receipt(BaseModel):
    payment_id: str
    amount: int
    secret: str = "not for the client"


class PublicReceipt(BaseModel):
    payment_id: str
    amount: int


def tenant(x_tenant: Annotated[str, Header()] = "acme") -> str:
    return x_tenant


Tenant = Annotated[str, Depends(tenant)]


@pytest.fixture
def app() -> FastAPI:
    return FastAPI()


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client:
        yield client


@pytest.fixture(params=["def", "async def"])
def charge(request: pytest.FixtureRequest, store: eo.Store, charges: list[str]) -> Callable[..., Any]:
    """A guarded endpoint with a path, a query, a body and a dependency, in both colours."""
    once = eo.once(store, scope="charge", key=("tenant", "payment.id"))
    if request.param == "def":

        @once
        def charge(shop: str, payment: Payment, tenant: Tenant, express: bool = False) -> Receipt:
            """Charge a card."""
            charges.append(f"{tenant}/{shop}/{payment.id}/{express}")
            return Receipt(payment_id=payment.id, amount=payment.amount)

        return charge

    @once
    async def acharge(shop: str, payment: Payment, tenant: Tenant, express: bool = False) -> Receipt:
        """Charge a card."""
        charges.append(f"{tenant}/{shop}/{payment.id}/{express}")
        return Receipt(payment_id=payment.id, amount=payment.amount)

    return acharge


async def test_a_repeated_request_is_answered_alike_and_charged_once(
    app: FastAPI, client: AsyncClient, charge: Any, charges: list[str]
) -> None:
    app.post("/shops/{shop}/charges", response_model=PublicReceipt)(charge)
    for _ in range(3):
        answer = await client.post("/shops/north/charges?express=true", json={"id": "p1", "amount": 4200})
        assert (answer.status_code, answer.json()) == (200, {"payment_id": "p1", "amount": 4200})
    assert charges == ["acme/north/p1/True"]


async def test_dependencies_are_resolved_and_may_be_the_key(
    app: FastAPI, client: AsyncClient, charge: Any, charges: list[str]
) -> None:
    app.post("/shops/{shop}/charges", response_model=PublicReceipt)(charge)
    for tenant in ("acme", "globex", "acme"):
        await client.post("/shops/north/charges", json={"id": "p1", "amount": 1}, headers={"X-Tenant": tenant})
    assert charges == ["acme/north/p1/False", "globex/north/p1/False"]


async def test_a_bad_body_is_refused_before_anything_is_claimed(
    app: FastAPI, client: AsyncClient, charge: Any, charges: list[str], store: eo.Store
) -> None:
    app.post("/shops/{shop}/charges")(charge)
    answer = await client.post("/shops/north/charges", json={"id": "p1", "amount": "a lot"})
    assert answer.status_code == 422
    assert (charges, store.list().records) == ([], [])


async def test_the_return_annotation_is_the_response_model(app: FastAPI, client: AsyncClient, charge: Any) -> None:
    app.post("/shops/{shop}/charges")(charge)
    first, again = [await client.post("/shops/north/charges", json={"id": "p1", "amount": 1}) for _ in range(2)]
    assert first.json() == again.json() == {"payment_id": "p1", "amount": 1, "secret": "not for the client"}


async def test_the_schema_names_what_the_handler_takes(app: FastAPI, client: AsyncClient, charge: Any) -> None:
    app.post("/shops/{shop}/charges", response_model=PublicReceipt)(charge)
    schema = (await client.get("/openapi.json")).json()
    operation = schema["paths"]["/shops/{shop}/charges"]["post"]
    assert {each["name"] for each in operation["parameters"]} == {"shop", "express", "x-tenant"}
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Payment")
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/PublicReceipt")
    assert (operation["summary"], operation["description"]) == (charge.__name__.title(), "Charge a card.")


tills = eo.connect("memory://")


class Till:
    """Endpoints as methods: bound guards have their parameters, without ``self``, and their types."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.router = APIRouter()
        self.router.post("/sync")(self.charge)
        self.router.post("/async")(self.acharge)

    @eo.once(tills, key="payment.id")
    def charge(self, payment: Payment) -> Receipt:
        self.charges.append(payment.id)
        return Receipt(payment_id=payment.id, amount=payment.amount)

    @eo.once(tills, key="payment.id")
    async def acharge(self, payment: Payment) -> Receipt:
        self.charges.append(payment.id)
        return Receipt(payment_id=payment.id, amount=payment.amount)


@pytest.mark.parametrize("path", ["/sync", "/async"])
async def test_a_bound_method_is_an_endpoint_too(
    app: FastAPI, client: AsyncClient, path: str, unique_name: str
) -> None:
    till = Till()
    app.include_router(till.router)
    for _ in range(2):
        answer = await client.post(path, json={"id": unique_name, "amount": 7})
        assert answer.json()["amount"] == 7
    assert till.charges == [unique_name]


async def test_a_guarded_function_is_a_dependency_too(
    app: FastAPI, client: AsyncClient, store: eo.Store, charges: list[str]
) -> None:
    @eo.once(store, scope="reserve", key="payment.id")
    async def reserve(payment: Payment) -> str:
        charges.append(payment.id)
        return f"reserved {payment.amount}"

    reserved = Depends(reserve)

    @app.post("/orders")
    def order(reservation: str = reserved) -> str:
        return reservation

    for _ in range(2):
        answer = await client.post("/orders", json={"id": "p1", "amount": 7})
        assert answer.json() == "reserved 7"
    assert charges == ["p1"]


async def test_a_request_beside_the_first_gets_the_guards_error_through_the_apps_handlers(
    app: FastAPI, client: AsyncClient, store: eo.Store, charges: list[str]
) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    @app.exception_handler(eo.InProgress)
    async def later(request: Any, error: eo.InProgress) -> JSONResponse:
        return JSONResponse({"code": error.code}, status_code=409)

    @app.post("/charges")
    @eo.once(store, scope="charge", key="payment.id")
    async def charge(payment: Payment) -> None:
        charges.append(payment.id)
        begun.set()
        await done.wait()

    body = {"id": "p1", "amount": 1}
    first = asyncio.create_task(client.post("/charges", json=body))
    await asyncio.wait_for(begun.wait(), 60)
    beside = await client.post("/charges", json=body)
    done.set()
    assert (beside.status_code, beside.json()) == (409, {"code": "in-progress"})
    assert (await first).status_code == 200
    assert charges == ["p1"]
