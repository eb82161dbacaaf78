# ruff: noqa
# expect file: P11
from flask import Flask, request
from flask_restful import Api, Resource

from models import Event, db

app = Flask(__name__)
api = Api(app)


class MailgunWebhook(Resource):
    def post(self):
        data = request.get_json()
        db.session.add(Event(kind=data["event"], recipient=data["recipient"]))
        db.session.commit()
        return {"ok": True}


api.add_resource(MailgunWebhook, "/webhooks/mailgun")
