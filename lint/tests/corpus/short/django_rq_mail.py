# ruff: noqa
# expect file: P11
from rq import get_current_job
import django_rq
from django.core.mail import EmailMultiAlternatives
@django_rq.job("default")
def newsletter(user_id, subject):
    msg = EmailMultiAlternatives(subject, "text", "from@x", ["to@x"])
    msg.attach_alternative("<p>", "text/html")
    msg.send()
