# ruff: noqa
# expect file: clean
import argparse

import psycopg
import stripe


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("account")
    parser.add_argument("cents", type=int)
    args = parser.parse_args()
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE accounts SET cents = cents + %s WHERE id = %s", (args.cents, args.account))
    stripe.Refund.create(charge=args.account)


if __name__ == "__main__":
    main()
