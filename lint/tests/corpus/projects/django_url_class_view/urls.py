# ruff: noqa
# expect file: P11
from django.urls import path

from .views import EntryView

urlpatterns = [path("hooks/bank/", EntryView.as_view())]
