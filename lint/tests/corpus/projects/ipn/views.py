# ruff: noqa
# expect file: P11
import hmac
import json

from django.conf import settings
from django.http import HttpResponse, HttpResponseForbidden
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .models import Donation
from .services import thank


@csrf_exempt
@require_POST
def paypal_ipn(request):
    if not hmac.compare_digest(request.headers.get("X-Sig", ""), settings.SIG):
        return HttpResponseForbidden()
    data = json.loads(request.body)
    Donation.objects.create(name=data["payer"], amount=data["gross"])
    return HttpResponse("ok")
