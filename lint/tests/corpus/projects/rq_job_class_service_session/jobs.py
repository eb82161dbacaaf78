# ruff: noqa
from rq import get_current_job
from app import create_app
from app.extensions import db
from app.models import Task, Notification
app = create_app()
app.app_context().push()
def export(user_id):
    job = get_current_job()
    n = Notification(name="done", user_id=user_id, payload_json="{}")
    db.session.add(n)
    db.session.commit()
