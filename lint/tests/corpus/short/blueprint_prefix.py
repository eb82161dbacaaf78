# ruff: noqa
# expect file: P11
import psycopg
from flask import Blueprint, Flask, request

bp = Blueprint("bank", __name__)


@bp.post("/bank")
def bank():
    event = request.get_json()
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE purse SET cents = cents + %s WHERE id = %s", (event["cents"], event["purse"]))
    return "", 204


def create_app():
    app = Flask(__name__)
    app.register_blueprint(bp, url_prefix="/webhooks")
    return app
