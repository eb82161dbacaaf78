# ruff: noqa
"""Dramatiq retries by default: every actor sees its message again."""

import uuid

import dramatiq
import sqlalchemy as sa
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from sendgrid import SendGridAPIClient
from sendgrid.helpers.mail import Mail
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, sessionmaker

from shop.tables import Inbox, Invoice, Wallet

broker = RabbitmqBroker(url="amqp://localhost")
dramatiq.set_broker(broker)
engine = sa.create_engine("postgresql://localhost/shop")
make_session = sessionmaker(engine)


@dramatiq.actor
def send_receipt(order_id, email):  # expect: P11
    mail = Mail(from_email="shop@example.com", to_emails=email, subject=f"Receipt {order_id}")
    SendGridAPIClient("key").send(mail)


@dramatiq.actor(max_retries=5, queue_name="billing")
def create_invoice(order_id, total):  # expect: P11
    with make_session() as session:
        session.add(Invoice(order_id=order_id, total=total))
        session.commit()


@dramatiq.actor
def create_invoice_once(message_id, order_id, total):  # expect: clean
    with make_session.begin() as session:
        session.add(Inbox(message_id=message_id))
        session.flush()
        session.add(Invoice(order_id=order_id, total=total))


@dramatiq.actor
def invoice_after_rolled_back_duplicate(message_id, order_id, total):  # expect: clean
    with Session(engine) as session:
        claim = session.execute(insert(Inbox).values(message_id=message_id).on_conflict_do_nothing())
        if claim.rowcount == 0:
            session.rollback()
            return
        session.add(Invoice(order_id=order_id, total=total))
        session.commit()


@dramatiq.actor
def invoice_with_made_up_id(order_id, total):  # expect: P11
    with make_session.begin() as session:
        session.add(Invoice(id=uuid.uuid4(), order_id=order_id, total=total))


@dramatiq.actor
def merge_invoice(invoice_id, total):  # expect: clean
    with make_session.begin() as session:
        session.merge(Invoice(id=invoice_id, total=total))


@dramatiq.actor
def top_up(wallet_id, amount):  # expect: P11
    with Session(engine) as session:
        wallet = session.get(Wallet, wallet_id)
        wallet.balance = wallet.balance + amount
        session.commit()


@dramatiq.actor
def top_up_locked(transfer_id, wallet_id, amount):  # expect: clean
    with Session(engine) as session, session.begin():
        wallet = session.get(Wallet, wallet_id, with_for_update=True)
        if wallet.last_transfer == transfer_id:
            return
        wallet.balance += amount
        wallet.last_transfer = transfer_id


@dramatiq.actor
def top_up_unlocked(transfer_id, wallet_id, amount):  # expect: EO101
    with Session(engine) as session:
        wallet = session.query(Wallet).filter_by(id=wallet_id).one()
        if wallet.last_transfer == transfer_id:
            return
        wallet.balance += amount
        wallet.last_transfer = transfer_id
        session.commit()


@dramatiq.actor
def core_statements(order_id):  # expect: P11
    with engine.begin() as conn:
        conn.execute(sa.insert(Invoice).values(order_id=order_id))


@dramatiq.actor
def two_transactions(message_id, order_id):  # expect: EO102
    with engine.begin() as conn:
        conn.execute(sa.insert(Inbox).values(message_id=message_id))
    with engine.begin() as conn:
        conn.execute(sa.insert(Invoice).values(order_id=order_id))


class Reindex(dramatiq.GenericActor):
    class Meta:
        queue_name = "search"

    def perform(self, document_id):  # expect: clean
        with engine.begin() as conn:
            conn.execute(sa.update(Invoice).where(Invoice.id == document_id).values(indexed=True))
