# ruff: noqa
from flask import Flask
from redis import Redis
import rq
def create_app():
    app = Flask(__name__)
    app.redis = Redis()
    app.task_queue = rq.Queue("x", connection=app.redis)
    return app
