# ruff: noqa
import os

BROKER_URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
RESULT_BACKEND = None
STRIPE_KEY = os.environ["STRIPE_KEY"]
