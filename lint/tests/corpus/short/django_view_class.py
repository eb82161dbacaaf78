# ruff: noqa
# expect file: P11
from django.views import View
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
import json
from .models import Donation
@method_decorator(csrf_exempt, name="dispatch")
class PaymentWebhookView(View):
    def post(self, request, *args, **kwargs):
        data = json.loads(request.body)
        Donation.objects.create(amount=data["amount"], donor=data["donor"])
        return HttpResponse("ok")
