from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

charges: list[str] = []


def charge(request: HttpRequest) -> HttpResponse:
    charges.append(str(request.user.pk))
    return HttpResponse(f"charge {len(charges)}", status=201)


urlpatterns = [path("admin/", admin.site.urls), path("charges", charge)]
