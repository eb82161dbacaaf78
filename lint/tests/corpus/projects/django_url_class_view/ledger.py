# ruff: noqa
from django.db.models import F

from .models import Account


def post_entry(account, cents):
    Account.objects.filter(pk=account).update(balance=F("balance") + cents)
