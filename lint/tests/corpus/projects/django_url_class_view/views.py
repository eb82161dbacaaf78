# ruff: noqa
from django.http import HttpResponse
from django.views import View

from .ledger import post_entry


class EntryView(View):
    def post(self, request):
        post_entry(request.POST["account"], int(request.POST["cents"]))
        return HttpResponse(status=204)
