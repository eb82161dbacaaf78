# ruff: noqa
# expect file: P11
import dramatiq

from .effects import *


@dramatiq.actor
def complaint(body):
    open_case(body)
