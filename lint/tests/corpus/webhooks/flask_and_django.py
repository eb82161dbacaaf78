# ruff: noqa
"""Webhooks in Flask and Django."""

import json

import requests
import stripe
from django.core.mail import send_mail
from django.db import IntegrityError, transaction
from django.http import HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from flask import Blueprint, Flask, request
from flask_sqlalchemy import SQLAlchemy
from rest_framework.response import Response
from rest_framework.views import APIView

from shop.models import Order, WebhookEvent

app = Flask(__name__)
db = SQLAlchemy(app)
hooks = Blueprint("hooks", __name__)


class Donation(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    provider_id = db.Column(db.String, unique=True)
    amount = db.Column(db.Integer)


class Note(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    text = db.Column(db.String)


@app.route("/webhook", methods=["POST"])
def donation_webhook():  # expect: clean
    """The table keeps the provider's id unique."""
    event = request.get_json()
    db.session.add(Donation(provider_id=event["id"], amount=event["amount"]))
    db.session.commit()
    return "", 204


@app.route("/webhook/notes", methods=["POST"])
def note_webhook():  # expect: P11
    event = request.get_json()
    db.session.add(Note(text=event["text"]))
    db.session.commit()
    return "", 204


@hooks.route("/paypal/ipn", methods=["POST"])
def paypal_ipn():  # expect: P11
    verified = requests.post("https://ipnpb.example/verify", data=request.get_data(), timeout=5)
    if verified.text != "VERIFIED":
        return "", 400
    requests.post("https://erp.example/payments", json=request.form.to_dict(), timeout=5)
    return "", 200


@app.route("/webhook", methods=["GET"])
def webhook_challenge():
    return request.args.get("hub.challenge", "")


@csrf_exempt
@require_POST
def stripe_webhook(request):  # expect: P11
    event = stripe.Webhook.construct_event(request.body, request.META["HTTP_STRIPE_SIGNATURE"], "whsec")
    if event.type == "checkout.session.completed":
        order = Order.objects.get(session_id=event.data.object.id)
        send_mail("Thanks", "we got your payment", None, [order.email])
    return HttpResponse(status=200)


@csrf_exempt
def stripe_webhook_recorded(request):  # expect: clean
    event = stripe.Webhook.construct_event(request.body, request.META["HTTP_STRIPE_SIGNATURE"], "whsec")
    try:
        with transaction.atomic():
            WebhookEvent.objects.create(event_id=event.id)
            Order.objects.create(customer=event.data.object.customer, total=event.data.object.amount)
    except IntegrityError:
        return JsonResponse({"duplicate": True})
    return JsonResponse({"ok": True})


@csrf_exempt
def stripe_webhook_enqueues(request):  # expect: clean
    """Take it, hand it over, answer: the usual advice."""
    event = stripe.Webhook.construct_event(request.body, request.META["HTTP_STRIPE_SIGNATURE"], "whsec")
    handle_event.delay(event.id, json.loads(request.body))
    return HttpResponse(status=200)


class ShopifyWebhook(APIView):
    def post(self, request):  # expect: P11
        order = request.data
        Order.objects.create(number=order["number"], total=order["total"])
        return Response(status=200)


class OrdersView(APIView):
    def post(self, request):
        Order.objects.create(number=request.data["number"])
        return Response(status=201)


def handle_event(event_id, payload): ...
