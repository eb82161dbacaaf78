# ruff: noqa
from django.core.mail import send_mail
from django.db.models.signals import post_save
from django.dispatch import receiver
from .models import Order

@receiver(post_save, sender=Order)
def mail_receipt(sender, instance, created, **kwargs):
    if instance.paid:
        send_mail("Your receipt", f"Order {instance.reference}", "shop@example.com", [instance.customer_email])
