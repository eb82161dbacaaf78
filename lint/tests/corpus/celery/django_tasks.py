# ruff: noqa
"""Celery with Django's ORM."""

from celery import shared_task
from celery.utils.log import get_task_logger
from django.core.cache import cache
from django.core.mail import EmailMessage, send_mail
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from .models import Account, Coupon, InboxMessage, LedgerEntry, Order, Profile, Shipment

logger = get_task_logger(__name__)


@shared_task
def add_points(user_id, points):  # expect: P11
    Profile.objects.filter(user_id=user_id).update(points=F("points") + points)


@shared_task
def add_points_in_python(user_id, points):  # expect: P11
    profile = Profile.objects.get(user_id=user_id)
    profile.points += points
    profile.save(update_fields=["points"])


@shared_task
def write_ledger(order_id, amount):  # expect: P11
    LedgerEntry.objects.create(order_id=order_id, amount=amount, booked_at=timezone.now())


@shared_task
def write_ledger_once(order_id, amount):  # expect: clean
    LedgerEntry.objects.get_or_create(order_id=order_id, defaults={"amount": amount})


@shared_task
def build_and_save(order_id):  # expect: P11
    shipment = Shipment(order_id=order_id, carrier="dhl")
    shipment.requested_at = timezone.now()
    shipment.save()


@shared_task(bind=True, acks_late=True)
def welcome_mail(self, user_id):  # expect: P11
    profile = Profile.objects.select_related("user").get(user_id=user_id)
    send_mail("Welcome", "Nice to see you", "shop@example.com", [profile.user.email])


@shared_task
def invoice_mail(order_id):  # expect: P11
    order = Order.objects.get(pk=order_id)
    message = EmailMessage(subject=f"Invoice {order.number}", to=[order.email])
    message.attach_file(order.invoice_path)
    message.send()


@shared_task
def mark_paid(order_id):  # expect: clean
    Order.objects.filter(pk=order_id).update(status="paid", paid_at=timezone.now())


@shared_task
def mark_paid_by_save(order_id):  # expect: clean
    order = Order.objects.get(pk=order_id)
    order.status = Order.PAID
    order.save()


@shared_task
def upsert_profile(user_id, payload):  # expect: clean
    Profile.objects.update_or_create(user_id=user_id, defaults=payload)


@shared_task
def drop_coupons(campaign):  # expect: clean
    Coupon.objects.filter(campaign=campaign).delete()


@shared_task
def credit_with_inbox(message_id, account_id, amount):  # expect: clean
    with transaction.atomic():
        _, created = InboxMessage.objects.get_or_create(message_id=message_id)
        if not created:
            logger.info("duplicate %s", message_id)
            return
        Account.objects.filter(pk=account_id).update(balance=F("balance") + amount)


@shared_task
@transaction.atomic
def credit_with_unique_row(message_id, account_id, amount):  # expect: clean
    try:
        with transaction.atomic():
            InboxMessage.objects.create(message_id=message_id)
    except IntegrityError:
        return
    Account.objects.filter(pk=account_id).update(balance=F("balance") + amount)


@shared_task
def credit_without_transaction(message_id, account_id, amount):  # expect: EO102
    _, created = InboxMessage.objects.get_or_create(message_id=message_id)
    if not created:
        return
    Account.objects.filter(pk=account_id).update(balance=F("balance") + amount)


@shared_task
def credit_after_exists(message_id, account_id, amount):  # expect: EO102, EO103
    if InboxMessage.objects.filter(message_id=message_id).exists():
        return
    Account.objects.filter(pk=account_id).update(balance=F("balance") + amount)
    InboxMessage.objects.create(message_id=message_id)


@shared_task
def mail_after_exists(message_id, to):  # expect: EO101, EO103
    if InboxMessage.objects.filter(message_id=message_id).exists():
        return
    send_mail("Your parcel", "is on its way", None, [to])
    InboxMessage.objects.create(message_id=message_id)


@shared_task
def mail_if_not_sent(order_id):  # expect: EO101, EO103
    order = Order.objects.get(pk=order_id)
    if order.confirmation_sent:
        return
    send_mail("Thanks", "for your order", None, [order.email])
    order.confirmation_sent = True
    order.save()


@shared_task
def credit_under_lock(order_id, amount):  # expect: clean
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.credited:
            return
        order.account.balance = F("balance") + amount
        Account.objects.filter(pk=order.account_id).update(balance=F("balance") + amount)
        order.credited = True
        order.save()


@shared_task
def ship_by_transition(order_id):  # expect: clean
    changed = Order.objects.filter(pk=order_id, status="paid").update(status="shipping")
    if not changed:
        return
    Shipment.objects.create(order_id=order_id)


@shared_task
def mail_with_cache_add(message_id, to):  # expect: clean
    if not cache.add(f"mail:{message_id}", True, timeout=14 * 24 * 3600):
        return
    send_mail("Hello", "again", None, [to])


@shared_task
def mail_with_cache_get(message_id, to):  # expect: EO101, EO103
    if cache.get(f"mail:{message_id}"):
        return
    send_mail("Hello", "again", None, [to])
    cache.set(f"mail:{message_id}", True, timeout=14 * 24 * 3600)


@shared_task
def inactive_user(user_id):  # expect: P11
    """A condition of the business is no guard."""
    profile = Profile.objects.get(user_id=user_id)
    if not profile.is_active:
        return
    send_mail("We miss you", "come back", None, [profile.email])


@shared_task
def enqueue_more(order_id):  # expect: clean
    """Handing over is no effect of its own: the other task is looked at by itself."""
    mark_paid.delay(order_id)
    invoice_mail.apply_async(args=[order_id], countdown=60)
