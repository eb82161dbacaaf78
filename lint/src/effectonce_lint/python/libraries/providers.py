"""Providers: APIs that move money, send mail and messages, and how they take an idempotency key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from effectonce_lint.python.values import NOTHING, UNKNOWN, Effect, Value
from effectonce_lint.word_lists import word_set

from .message_parts import MESSAGE, PAYLOAD

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

#: By tag: the provider whose API keeps idempotency keys, and how its client is given one. Empty: it keeps none.
_MONEY = {
    "stripe.client": ("Stripe", "idempotency_key"),
    "square": ("Square", "idempotency_key"),
    "adyen": ("Adyen", "idempotency_key"),
    "mollie": ("Mollie", "idempotency_key"),
    "gocardless": ("GoCardless", "the header Idempotency-Key"),
    "checkout": ("Checkout.com", "idempotency_key"),
    "plaid": ("Plaid", "idempotency_key"),
    "dwolla": ("Dwolla", "the header Idempotency-Key"),
    "coinbase": ("Coinbase", "idem"),
    "keyed.payment": ("this API", "idempotency_key"),
    "paypal.http": ("PayPal", "the header PayPal-Request-Id"),
    "razorpay": ("", ""),
    "braintree": ("", ""),
    "payment": ("", ""),
}
_MOVES = word_set(
    "create charge capture_payment payments transfer transfer_create sale refund credit payout refund_payment"
    " authorize capture transfer_intent_create execute submit pay request_payment transfer_authorization_create"
    " authorize_payment"
)
_STRIPE_HARMLESS = re.compile(r"billing_portal|Webhook|Token|EphemeralKey|AccountLink|Search|preview|checkout")
_STRIPE_WORDS = {
    "refund": "refunds a payment",
    "transfer": "transfers money",
    "payout": "pays out",
    "charge": "charges a card",
    "paymentintent": "charges a card",
    "payment_intent": "charges a card",
    "invoice": "bills a customer",
    "subscription": "starts a subscription",
    "customer": "creates a Stripe customer",
}
_HOSTS = {
    "api.stripe.com": ("Stripe", "the header Idempotency-Key"),
    "paypal.com": ("PayPal", "the header PayPal-Request-Id"),
    "squareup": ("Square", "idempotency_key in the body"),
    "adyen": ("Adyen", "the header Idempotency-Key"),
    "api.resend.com": ("Resend", "the header Idempotency-Key"),
    "dwolla": ("Dwolla", "the header Idempotency-Key"),
    "gocardless": ("GoCardless", "the header Idempotency-Key"),
    "api.mollie.com": ("Mollie", "the header Idempotency-Key"),
    "api.checkout.com": ("Checkout.com", "the header Cko-Idempotency-Key"),
    "wise.com": ("Wise", "the header X-idempotence-uuid"),
}
#: By tag: what sends, and by which methods.
_SENDERS = {
    "smtp": ("mail", word_set("send_message sendmail send")),
    "sendgrid": ("mail", word_set("send post create")),
    "mailer": ("mail", word_set("send send_message send_bulk send_email send_transac_email send_mail begin_send")),
    "mail.message": ("mail", word_set("send")),
    "aws.ses": ("mail", word_set("send_email send_raw_email send_templated_email send_bulk_templated_email")),
    "aws.sesv2": ("mail", word_set("send_email send_bulk_email")),
    "twilio": ("message", word_set("create send send_message message_create sms")),
    "aws.pinpoint": ("message", word_set("send_messages send_users_messages")),
    "chat": (
        "message",
        word_set(
            "chat_postMessage send send_message publish publish_to_interests execute trigger files_upload_v2"
            " send_notification notify_single_device"
        ),
    ),
}
_MAILS = word_set(
    "django.core.mail.send_mail django.core.mail.send_mass_mail django.core.mail.mail_admins aiosmtplib.send"
    " django.core.mail.mail_managers resend.Emails.send anymail.send flask_mailman.send_mail post_office.mail.send"
    " templated_email.send_templated_mail"
)
_PUSHES = word_set(
    "firebase_admin.messaging.send firebase_admin.messaging.send_multicast firebase_admin.messaging.send_each"
    " pywebpush.webpush apprise.notify"
)
_WORDS = {"payment": "moves money", "mail": "sends mail", "message": "sends a message"}

#: Functions out of sight whose name leaves no doubt. A local name that could be anything never counts.
_VERBS = {
    "payment": re.compile(
        r"^(?:charge|charge_\w+|(?:capture|take|make|process)_payment|debit\w*|refund\w*|payout\w*|pay|withdraw\w*|bill_\w+"
        r"|transfer_(?:funds|money)|create_(?:charge|payment|payout|refund|transfer|payment_intent))$"
    ),
    "mail": re.compile(
        r"^(?:send|deliver)_(?:\w+_)?(?:e?mails?|receipts?|confirmations?|invoices?|newsletters?)(?:_\w+)?$"
    ),
    "message": re.compile(
        r"^send_(?:\w+_)?(?:sms|push|text|slack|whatsapp|telegram|notifications?|text_messages?)(?:_\w+)?$|^send_message$"
    ),
}

_KEY_ARGUMENTS = word_set(
    "idempotency_key idempotencyKey idempotence_key request_id client_token ClientToken ClientRequestToken dedup_id"
    " client_request_token x_idempotency_key idempotency_id"
)
_KEY_HEADERS = word_set(
    "idempotency-key x-idempotency-key paypal-request-id idempotence-key x-request-id x-idempotence-key"
    " x-idempotence-uuid cko-idempotency-key idempotency_key"
)
_HOLDERS = ("headers", "options", "params", "json", "body", "data", "request_options", "properties")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    if call.ref.startswith("stripe."):
        return _interpret_stripe(walk, call)
    effect = _payment_effect(call) or _message_effect(call)
    return emit_effect(walk, call, effect) if effect is not None else None


def emit_effect(walk: CallWalker, call: Call, effect: Effect) -> Value:
    """Note an effect on the outside, with the idempotency key that it carries."""
    effect.key, effect.key_given = _key_of(call)
    effect.names_at_hand = tuple(name for name, value in walk.scope.names.items() if MESSAGE in value.taint)
    walk.emit("effect", call.node, text=call.source_text, effect=effect)
    return Value(text=f"{call.source_text}()")


# -- money


def _interpret_stripe(walk: CallWalker, call: Call) -> Value | None:
    last = call.name
    creates = last.startswith("create") or (last == "pay" and "Invoice" in call.ref)
    if creates and not _STRIPE_HARMLESS.search(call.ref):
        what = _describe_stripe(call.ref)
        return emit_effect(walk, call, Effect("payment", what, provider="Stripe", takes_key="idempotency_key"))
    if not last.islower():
        return None
    event = last.startswith("construct")  # a verified webhook event is the message
    return Value(text=f"{call.ref}()", taint=frozenset({MESSAGE, PAYLOAD}) if event else NOTHING)


def _describe_stripe(name: str) -> str:
    low = name.lower()
    return next((what for word, what in _STRIPE_WORDS.items() if word in low), "creates a Stripe object")


def _payment_effect(call: Call) -> Effect | None:
    client = root_of(call.receiver)
    provider = _MONEY.get(client.tag)
    if provider is None:
        top = call.ref.partition(".")[0]
        if top in ("braintree", "paypalrestsdk", "razorpay") and call.name in ("sale", "create", "refund", "credit"):
            return Effect("payment", "moves money")
        return None
    posts = call.name == "post" and client.tag == "dwolla"
    if not (posts or call.name in _MOVES or call.name.startswith("create")):
        return None
    if client.tag == "stripe.client":
        if _STRIPE_HARMLESS.search(call.target.text):
            return None
        what = _describe_stripe(call.target.text)
    else:
        what = f"moves money through {provider[0]}" if provider[0] else "moves money"
    return Effect("payment", what, provider=provider[0], takes_key=provider[1])


def root_of(value: Value) -> Value:
    """`client.v1.charges` leads back to `client`."""
    while not value.tag and value.base is not None:
        value = value.base
    return value


def set_provider_by_address(effect: Effect, address: str) -> None:
    """Say of an HTTP call which provider it goes to, where its address tells."""
    for host, (provider, how) in _HOSTS.items():
        if host in address:
            effect.category, effect.provider, effect.takes_key = "payment", provider, how


# -- mail and messages


def _message_effect(call: Call) -> Effect | None:
    if call.ref in _MAILS:
        effect = Effect("mail", "sends mail")
        if call.ref.startswith("resend."):
            effect.provider, effect.takes_key = "Resend", "idempotency_key in its options"
        return effect
    if call.ref in _PUSHES:
        return Effect("message", "sends a push message")
    client = root_of(call.receiver)
    category, methods = _SENDERS.get(client.tag, ("", NOTHING))
    if call.name in methods or (category and call.name.startswith("send_")):
        return Effect(category, _WORDS[category])
    given = call.keywords.keys()
    if client.tag == "aws.sns" and call.name == "publish" and "PhoneNumber" in given:
        return Effect("message", "sends an SMS")
    # clients out of sight, called as only theirs are
    if call.name == "create" and call.receiver.attr in ("messages", "calls") and {"to", "from_"} <= given:
        return Effect("message", "sends a message")
    if call.name == "send_email" and {"Source", "Destination"} & given:
        return Effect("mail", "sends mail")
    return None


def effect_by_verb(call: Call) -> Effect | None:
    """What a function out of sight does, where its name leaves no doubt."""
    category = next((category for category, pattern in _VERBS.items() if pattern.match(call.name)), "")
    return Effect(category, _WORDS[category], sure=False) if category else None


# -- keys


def _key_of(call: Call) -> tuple[Value | None, bool]:
    """The idempotency key that a call carries, wherever its API wants it; and whether there is one at all."""
    for name in _KEY_ARGUMENTS & call.keywords.keys():
        if call.keywords[name].literal is not None:
            return call.keywords[name], True
    if "**" in call.keywords:
        return None, True  # out of sight
    holders = [call.keywords[name] for name in _HOLDERS if name in call.keywords]
    for holder in (*holders, *call.args):
        key = _key_in(holder)
        if key is not None:
            return key, True
    headers = call.keywords.get("headers")
    unseen = headers is not None and headers.literal is UNKNOWN and headers.fields is None
    return None, unseen and headers is not None and "idempot" in headers.text.lower()


def _key_in(holder: Value) -> Value | None:
    for name, value in (holder.fields or {}).items():
        if name.lower() in _KEY_HEADERS or name in _KEY_ARGUMENTS:
            return value
        if (inner := _key_in(value)) is not None:
            return inner
    return None
