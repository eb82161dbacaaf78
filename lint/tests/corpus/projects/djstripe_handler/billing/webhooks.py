# ruff: noqa
# expect file: P11
from djstripe import webhooks
from django.contrib.auth import get_user_model
from django.core.mail import EmailMultiAlternatives

User = get_user_model()

@webhooks.handler("invoice.paid")
def on_invoice_paid(event, **kwargs):
    user = User.objects.get(stripe_id=event.data["object"]["customer"])
    message = EmailMultiAlternatives("Invoice paid", "Thanks", "a@b.c", [user.email])
    message.attach_alternative("<p>Thanks</p>", "text/html")
    message.send()
