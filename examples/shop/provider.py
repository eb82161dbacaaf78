"""Stands for Stripe: charges once for each Idempotency-Key, whatever becomes of its answers, and keeps a ledger.

python provider.py PORT [SHARE OF ANSWERS THAT GET LOST]
"""

import json
import random
import sqlite3
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LEDGER = "provider.db"
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, body BLOB, status INTEGER, answer TEXT);
CREATE TABLE IF NOT EXISTS ledger (number INTEGER PRIMARY KEY, kind TEXT, order_id TEXT, amount INTEGER);
"""


def ledger() -> sqlite3.Connection:
    return sqlite3.connect(LEDGER, timeout=30, isolation_level=None)


def answered(kind: str, key: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """What a request comes to: the key, the booking and the answer are one commit, so a killed one did nothing."""
    with closing(ledger()) as db, db:
        db.execute("BEGIN IMMEDIATE")
        kept = db.execute("SELECT body, status, answer FROM answers WHERE key = ?", (key,)).fetchone()
        if kept is not None and kept[0] != body:
            return 400, {"error": {"type": "idempotency_error"}}
        if kept is not None:
            return kept[1], json.loads(kept[2])
        asked = json.loads(body)
        status = 402
        answer: dict[str, Any] = {"error": {"type": "card_error", "code": "card_declined"}}
        if asked["card"] != "declined":
            row = (kind, asked["order"], asked["amount"])
            booked = db.execute("INSERT INTO ledger (kind, order_id, amount) VALUES (?, ?, ?)", row)
            status, answer = 200, {"id": f"{kind}_{booked.lastrowid}"}
        db.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", (key, body, status, json.dumps(answer)))
        return status, answer


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lost = 0.0

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        key = self.headers.get("Idempotency-Key")
        if len(body) < length or key is None:  # who sent it was killed half-way, or asks for trouble
            self.close_connection = True
            return
        came = answered(self.path.strip("/").removesuffix("s"), key, body)
        if random.random() < self.lost:  # done, and the answer is lost
            self.close_connection = True
        else:
            self.send(*came)

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        row = (asked.path.strip("/").removesuffix("s"), *parse_qs(asked.query).get("order", [""]))
        with closing(ledger()) as db:
            found = db.execute("SELECT kind || '_' || number FROM ledger WHERE kind = ? AND order_id = ?", row)
            self.send(200, {"data": [{"id": id} for (id,) in found]})

    def send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    with closing(ledger()) as db:
        db.executescript(SCHEMA)
    Provider.lost = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Provider).serve_forever()
