# ruff: noqa
# expect file: clean
import json

import boto3
import pymysql

sqs = boto3.client("sqs")
conn = pymysql.connect(host="db")


class Duplicate(Exception):
    pass


def book(body):
    try:
        with conn.cursor() as cur:
            cur.execute("INSERT INTO bookings (booking_ref, room) VALUES (%s, %s)", (body["ref"], body["room"]))
            cur.execute("UPDATE rooms SET guests = guests + 1 WHERE id = %s", (body["room"],))
        conn.commit()
    except pymysql.err.IntegrityError as error:
        conn.rollback()
        raise Duplicate(body["ref"]) from error


def main():
    while True:
        for m in sqs.receive_message(QueueUrl="q").get("Messages", []):
            try:
                book(json.loads(m["Body"]))
            except Duplicate:
                pass
            sqs.delete_message(QueueUrl="q", ReceiptHandle=m["ReceiptHandle"])
