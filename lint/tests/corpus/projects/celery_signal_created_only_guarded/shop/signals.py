# ruff: noqa
from django.core.mail import send_mail
from django.db.models.signals import post_save
from django.dispatch import receiver
from .models import Order
@receiver(post_save, sender=Order)
def welcome(sender, instance, created, **kwargs):
    if not created:
        return
    send_mail("Thanks", "…", None, [instance.email])
