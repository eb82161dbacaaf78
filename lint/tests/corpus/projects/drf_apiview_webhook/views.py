# ruff: noqa
# expect file: P11
import hmac
from rest_framework.views import APIView
from rest_framework.response import Response
from rest_framework.permissions import AllowAny
from .serializers import PaymentSerializer

class PaystackWebhookView(APIView):
    permission_classes = [AllowAny]
    authentication_classes = []

    def post(self, request, *args, **kwargs):
        serializer = PaymentSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        payment = serializer.save()
        wallet = payment.user.wallet
        wallet.balance += payment.amount
        wallet.save()
        return Response(status=200)
