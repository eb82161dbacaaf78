# ruff: noqa
"""Redis streams and lists as queues."""

import json

import redis
import smtplib

r = redis.Redis(decode_responses=True)


def mail_loop():  # expect: P11
    smtp = smtplib.SMTP("localhost")
    while True:
        entries = r.xreadgroup("mailers", "m1", {"mail": ">"}, count=10, block=5000)
        for _, messages in entries:
            for entry_id, fields in messages:
                smtp.sendmail("shop@example.com", [fields["to"]], fields["text"])
                r.xack("mail", "mailers", entry_id)


def mail_loop_once():  # expect: clean
    smtp = smtplib.SMTP("localhost")
    while True:
        for stream, messages in r.xreadgroup("mailers", "m1", {"mail": ">"}, count=10, block=5000):
            for entry_id, fields in messages:
                if r.set(f"mail:{fields['message_id']}", 1, nx=True, ex=1296000):
                    smtp.sendmail("shop@example.com", [fields["to"]], fields["text"])
                r.xack(stream, "mailers", entry_id)


def acked_first():  # expect: EO201
    while True:
        for stream, messages in r.xreadgroup("g", "c", {"orders": ">"}, block=0):
            for entry_id, fields in messages:
                r.xack(stream, "g", entry_id)
                r.hset(f"order:{fields['id']}", mapping=fields)


def without_acks():  # expect: EO201
    while True:
        for _, messages in r.xreadgroup("g", "c", {"orders": ">"}, block=0, noack=True):
            for _, fields in messages:
                r.hset(f"order:{fields['id']}", mapping=fields)


def list_queue():  # expect: P11
    while True:
        _, raw = r.brpop("jobs")
        job = json.loads(raw)
        r.incrby(f"total:{job['customer']}", job["amount"])


def project():  # expect: clean
    while True:
        for stream, messages in r.xreadgroup("g", "c", {"orders": ">"}, block=0):
            for entry_id, fields in messages:
                r.hset(f"order:{fields['id']}", mapping=fields)
                r.xack(stream, "g", entry_id)
