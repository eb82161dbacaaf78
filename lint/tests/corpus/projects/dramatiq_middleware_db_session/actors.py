# ruff: noqa
# expect file: P11
import dramatiq
from db import current
from models import Visit
@dramatiq.actor
def visited(page, user):
    session = current()
    session.add(Visit(page=page, user=user))
    session.commit()
