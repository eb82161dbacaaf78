# ruff: noqa
# expect file: EO101, EO103
from django.core.mail import send_mail
from rest_framework.decorators import api_view
from rest_framework.response import Response

from .models import WebhookDelivery


@api_view(["POST"])
def contract_signed(request):
    if WebhookDelivery.objects.filter(delivery_id=request.data["delivery_id"]).exists():
        return Response(status=200)
    send_mail("Signed", "Your contract is signed", "a@example.org", [request.data["email"]])
    WebhookDelivery.objects.create(delivery_id=request.data["delivery_id"])
    return Response(status=201)
