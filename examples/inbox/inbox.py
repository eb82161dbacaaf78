"""The row that says "handled" and the rows that the handler wrote are one commit: python inbox.py"""

import multiprocessing
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import effectonce as eo

inbox = eo.Inbox(scope="deposits", retention="30d")


def connect() -> sqlite3.Connection:
    conn = sqlite3.connect("bank.db", timeout=30)
    conn.execute("PRAGMA synchronous = FULL")
    return conn


def deposit(message: eo.Message[int], *, die: bool = False) -> None:
    with connect() as conn:
        if inbox.first(conn, message):  # False for every later delivery
            conn.execute("UPDATE accounts SET cents = cents + ?", (message.data,))
        if die:
            os._exit(9)  # before the commit: neither row is there
    conn.close()


def main() -> None:
    with connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS accounts (cents INTEGER)")
        conn.execute("DELETE FROM accounts")
        conn.execute("INSERT INTO accounts VALUES (0)")
    inbox.migrate(conn)
    messages = [eo.Message(type="deposit", data=100) for _ in range(5)]
    victim = multiprocessing.get_context("spawn").Process(target=deposit, args=(messages[0],), kwargs={"die": True})
    victim.start()
    victim.join()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(deposit, messages * 4))  # four deliveries of each, eight at once
    [cents] = conn.execute("SELECT cents FROM accounts").fetchone()
    print(f"[result] 21 deliveries of 5 deposits, 1 killed: {cents} cents")


if __name__ == "__main__":
    main()
