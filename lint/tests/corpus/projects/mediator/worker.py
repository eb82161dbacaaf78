# ruff: noqa
# expect file: P11
import dramatiq

from .bus import Mediator
from .commands import AddPoints
from .handlers import AddPointsHandler

mediator = Mediator()
mediator.register(AddPoints, AddPointsHandler("dbname=x"))


@dramatiq.actor
def points_earned(member, points):
    mediator.send(AddPoints(member, points))
