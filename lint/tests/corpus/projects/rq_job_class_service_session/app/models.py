# ruff: noqa
# expect file: P11
from app.extensions import db
class Notification(db.Model):
    id = db.Column(db.Integer, primary_key=True)
    name = db.Column(db.String)
    user_id = db.Column(db.Integer)
    payload_json = db.Column(db.Text)
    @classmethod
    def launch(cls, user):
        from flask import current_app
        import jobs
        return current_app.task_queue.enqueue(jobs.export, user.id)
class Task(db.Model):
    id = db.Column(db.Integer, primary_key=True)
