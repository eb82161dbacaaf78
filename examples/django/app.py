"""Charge a card once, however often the client asks: a Django project in one file.

    python app.py migrate
    python app.py runserver

/charges is mode L, because the bank is outside; /orders is mode T: key, order and response are one commit.
"""

import json
import os
import sys
import time

from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

import effectonce as eo
from effectonce.http import Route
from effectonce.integrations.django import transactional

STORE = os.environ.get("EFFECTONCE_STORE", "sqlite:///keys.db")
ENGINE, NAME, PORT = os.environ.get("DATABASE", "sqlite3 shop.db 0").split()  # or: postgresql shop 5432

ROUTES = {"/charges": Route(required=True, retention="30d", lease="2s")}  # other paths are not guarded


def caller(request: HttpRequest) -> str:
    return request.user


PLACE = {"ENGINE": f"django.db.backends.{ENGINE}", "NAME": NAME, "HOST": "127.0.0.1", "PORT": PORT, "USER": "postgres"}
settings.configure(
    SECRET_KEY="only for this example",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={"default": PLACE},
    MIDDLEWARE=[f"{__name__}.authentication", "effectonce.integrations.django.IdempotencyMiddleware"],
    EFFECTONCE={"STORE": STORE, "PRINCIPAL": caller, "SERVICE": "shop", "DEFAULT": None, "ROUTES": ROUTES},
)


def authentication(get_response):
    """Stands for Django's AuthenticationMiddleware."""

    def middleware(request: HttpRequest) -> HttpResponse:
        request.user = {"Bearer a-token": "alice", "Bearer b-token": "bob"}.get(request.headers.get("Authorization"))
        return get_response(request) if request.user else HttpResponse(status=401)

    return middleware


def charge(request: HttpRequest) -> HttpResponse:
    payment = json.loads(request.body)
    with open("bank.txt", "a") as book:  # the effect outside, and the time until the bank confirms it
        print(request.user, payment["order"], payment["amount"], file=book)
    time.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))
    return JsonResponse(payment, status=201)


inbox = eo.Inbox(scope="orders", retention="30d")


@transactional(inbox, principal=caller, required=True)
def order(request: HttpRequest) -> HttpResponse:
    order = json.loads(request.body)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (name, amount) VALUES (%s, %s)", [order["order"], order["amount"]])
    time.sleep(float(os.environ.get("BANK_SECONDS", "0.1")))  # slow work in the open transaction
    return JsonResponse(order, status=201)


urlpatterns = [path("charges", charge), path("orders", order)]


def migrate() -> None:
    eo.connect(STORE).migrate()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (name text, amount integer)")
        inbox.migrate(connection)


if __name__ == "__main__":
    if sys.argv[1:] == ["migrate"]:
        migrate()
    else:
        execute_from_command_line(sys.argv)
