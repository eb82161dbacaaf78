# ruff: noqa
# expect file: P11
from redis import Redis
from rq import Queue
q = Queue(connection=Redis())
def enqueue_report(user_id):
    return q.enqueue("jobs.reports.email_report", user_id)
