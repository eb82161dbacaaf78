# ruff: noqa
# expect file: P11
from rest_framework import serializers, viewsets
from rest_framework.response import Response

from .models import Entry


class EntrySerializer(serializers.ModelSerializer):
    class Meta:
        model = Entry
        fields = ["account", "cents"]


class BankWebhookViewSet(viewsets.ViewSet):
    def create(self, request):
        serializer = EntrySerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        serializer.save()
        return Response(status=201)
