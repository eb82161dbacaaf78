"""Providers: APIs that move money or send mail and messages, and how they take an idempotency key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from effectonce_lint.python.taints import MESSAGE, PAYLOAD
from effectonce_lint.python.values import EMPTY_SET, UNKNOWN_LITERAL, Effect, EffectCategory, Value
from effectonce_lint.word_lists import word_set

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

#: By tag: the provider whose API takes idempotency keys, and how its client passes one. Empty: it takes none.
_PAYMENT_CLIENTS = {
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
_PAYMENT_METHODS = word_set(
    "create charge capture_payment payments transfer transfer_create sale refund credit payout refund_payment"
    " authorize capture transfer_intent_create execute submit pay request_payment transfer_authorization_create"
    " authorize_payment"
)
_STRIPE_WITHOUT_CHARGE = re.compile(r"billing_portal|Webhook|Token|EphemeralKey|AccountLink|Search|preview|checkout")
_STRIPE_ACTIONS = {
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
_PAYMENT_HOSTS = {
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
#: By tag of the client: the category of its effects, and the methods that send.
_MESSAGE_CLIENTS: dict[str, tuple[EffectCategory, frozenset[str]]] = {
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
_MAIL_FUNCTIONS = word_set(
    "django.core.mail.send_mail django.core.mail.send_mass_mail django.core.mail.mail_admins aiosmtplib.send"
    " django.core.mail.mail_managers resend.Emails.send anymail.send flask_mailman.send_mail post_office.mail.send"
    " templated_email.send_templated_mail"
)
_PUSH_FUNCTIONS = word_set(
    "firebase_admin.messaging.send firebase_admin.messaging.send_multicast firebase_admin.messaging.send_each"
    " pywebpush.webpush apprise.notify"
)
_ACTIONS: dict[EffectCategory, str] = {"payment": "moves money", "mail": "sends mail", "message": "sends a message"}

#: By category: names that leave no doubt, of functions whose code is not in the project. Local variables never count.
_EFFECT_NAMES: dict[EffectCategory, re.Pattern[str]] = {
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
_KEY_CONTAINERS = ("headers", "options", "params", "json", "body", "data", "request_options", "properties")


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call to a provider; None for other calls."""
    if call.ref.startswith("stripe."):
        return _interpret_stripe(walk, call)
    effect = _payment_effect(call) or _message_effect(call)
    return emit_effect(walk, call, effect) if effect is not None else None


def emit_effect(walk: CallWalker, call: Call, effect: Effect) -> Value:
    """Emit an effect, with the idempotency key that ``call`` passes."""
    effect.key, effect.key_given = _key_of(call)
    effect.names_at_hand = tuple(name for name, value in walk.scope.names.items() if MESSAGE in value.taint)
    walk.emit("effect", call.node, text=call.source_text, effect=effect)
    return Value(text=f"{call.source_text}()")


# -- money


def _interpret_stripe(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a function of the ``stripe`` module: it creates something, or verifies a webhook."""
    name = call.name
    creates = name.startswith("create") or (name == "pay" and "Invoice" in call.ref)
    if creates and not _STRIPE_WITHOUT_CHARGE.search(call.ref):
        action = _describe_stripe(call.ref)
        return emit_effect(walk, call, Effect("payment", action, provider="Stripe", takes_key="idempotency_key"))
    if not name.islower():
        return None
    is_webhook_event = name.startswith("construct")  # a verified webhook event is the message
    return Value(text=f"{call.ref}()", taint=frozenset({MESSAGE, PAYLOAD}) if is_webhook_event else EMPTY_SET)


def _describe_stripe(name: str) -> str:
    """What creating a Stripe object does, for the message of a finding."""
    lower_name = name.lower()
    return next((action for word, action in _STRIPE_ACTIONS.items() if word in lower_name), "creates a Stripe object")


def _payment_effect(call: Call) -> Effect | None:
    """The effect of a call to a payment provider's client."""
    client = root_of(call.receiver)
    if client.tag not in _PAYMENT_CLIENTS:
        library = call.ref.partition(".")[0]
        if library in ("braintree", "paypalrestsdk", "razorpay") and call.name in (
            "sale",
            "create",
            "refund",
            "credit",
        ):
            return Effect("payment", "moves money")
        return None
    is_post = call.name == "post" and client.tag == "dwolla"
    if not (is_post or call.name in _PAYMENT_METHODS or call.name.startswith("create")):
        return None
    provider, takes_key = _PAYMENT_CLIENTS[client.tag]
    action = f"moves money through {provider}" if provider else "moves money"
    if client.tag == "stripe.client":
        if _STRIPE_WITHOUT_CHARGE.search(call.target.text):
            return None
        action = _describe_stripe(call.target.text)
    return Effect("payment", action, provider=provider, takes_key=takes_key)


def root_of(value: Value) -> Value:
    """The client that ``value`` is a part of: `client` for `client.v1.charges`."""
    while not value.tag and value.base is not None:
        value = value.base
    return value


def set_provider_by_address(effect: Effect, address: str) -> None:
    """Turn the effect of an HTTP call into a payment if its address is a payment provider's."""
    for host, (provider, takes_key) in _PAYMENT_HOSTS.items():
        if host in address:
            effect.category, effect.provider, effect.takes_key = "payment", provider, takes_key


# -- mail and messages


def _message_effect(call: Call) -> Effect | None:
    """The effect of a call that sends mail or a message."""
    if call.ref in _MAIL_FUNCTIONS:
        effect = Effect("mail", "sends mail")
        if call.ref.startswith("resend."):
            effect.provider, effect.takes_key = "Resend", "idempotency_key in its options"
        return effect
    if call.ref in _PUSH_FUNCTIONS:
        return Effect("message", "sends a push message")
    client = root_of(call.receiver)
    if client.tag in _MESSAGE_CLIENTS:
        category, methods = _MESSAGE_CLIENTS[client.tag]
        if call.name in methods or call.name.startswith("send_"):
            return Effect(category, _ACTIONS[category])
    keywords = call.keywords.keys()
    if client.tag == "aws.sns" and call.name == "publish" and "PhoneNumber" in keywords:
        return Effect("message", "sends an SMS")
    # clients of an unknown type, by arguments that only theirs have
    if call.name == "create" and call.receiver.attr in ("messages", "calls") and {"to", "from_"} <= keywords:
        return Effect("message", "sends a message")
    if call.name == "send_email" and {"Source", "Destination"} & keywords:
        return Effect("mail", "sends mail")
    return None


def effect_by_verb(call: Call) -> Effect | None:
    """The effect of a function whose code is not in the project, by its name."""
    for category, pattern in _EFFECT_NAMES.items():
        if pattern.match(call.name):
            return Effect(category, _ACTIONS[category], sure=False)
    return None


# -- keys


def _key_of(call: Call) -> tuple[Value | None, bool]:
    """The idempotency key that a call passes, and whether it passes one, even if the code computes the arguments."""
    for name in _KEY_ARGUMENTS & call.keywords.keys():
        if call.keywords[name].literal is not None:
            return call.keywords[name], True
    if "**" in call.keywords:
        return None, True  # one of them may be the key
    containers = [call.keywords[name] for name in _KEY_CONTAINERS if name in call.keywords]
    for container in (*containers, *call.args):
        key = _key_in(container)
        if key is not None:
            return key, True
    headers = call.keywords.get("headers")
    is_computed = headers is not None and headers.literal is UNKNOWN_LITERAL and headers.fields is None
    return None, is_computed and headers is not None and "idempot" in headers.text.lower()


def _key_in(container: Value) -> Value | None:
    """The key in headers, options or a body, at any depth."""
    for name, value in (container.fields or {}).items():
        if name.lower() in _KEY_HEADERS or name in _KEY_ARGUMENTS:
            return value
        if (nested_key := _key_in(value)) is not None:
            return nested_key
    return None
