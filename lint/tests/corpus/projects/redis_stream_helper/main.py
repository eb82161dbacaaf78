# ruff: noqa
# expect file: P11
from streams import get_redis_client, read_group
from mailer import Mailer

def main():
    r = get_redis_client()
    mailer = Mailer()
    while True:
        for entry_id, fields in read_group(r, "mail", "mailers", "m1"):
            mailer.deliver(fields["to"], fields["template"])
            r.xack("mail", "mailers", entry_id)
