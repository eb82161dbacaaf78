# ruff: noqa
# expect file: clean
from flask import Flask, request
import hmac
from app.tasks import handle_event
app = Flask(__name__)
@app.post("/webhook")
def hook():
    if not hmac.compare_digest(request.headers["X-Sig"], "x"):
        return "", 403
    handle_event.delay(request.json)
    return "", 202
