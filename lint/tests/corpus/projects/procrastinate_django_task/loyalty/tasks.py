# ruff: noqa
# expect file: P11
from procrastinate.contrib.django import app
from django.db.models import F
from loyalty.models import Member
@app.task(queue="loyalty", retry=5)
def add_points(member_id, points):
    member = Member.objects.get(pk=member_id)
    member.points = F("points") + points
    member.save(update_fields=["points"])
