"""Orders flow in while every process is killed with -9, again and again: python chaos.py --orders 500

Some requests are sent twice, some are cut off and sent again; some cards are declined, some orders cannot be shipped,
and some answers of the provider get lost. In the end the books are compared. Exits with 1 if anything was lost or
doubled. On servers: with EFFECTONCE_STORE and EFFECTONCE_BROKER, as run.py, but in an empty database.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from orders import Basket
    from run import Shop

KILLED = ("web", "relay", "worker", "provider", "dashboard")
BUYERS = 8
LOST = 0.05  # of the provider's answers


def buy(shop: Shop, basket: Basket, dice: random.Random, deadline: float) -> str:
    """The number of the order. A customer asks until there is an answer, and some then ask again."""
    key = uuid.UUID(int=dice.getrandbits(128))
    headers = {"Idempotency-Key": f'"{key}"', "Authorization": "Bearer ann"}
    numbers: list[str] = []
    answers = 2 if dice.random() < 0.2 else 1
    while len(numbers) < answers:
        if time.monotonic() > deadline:
            raise SystemExit(f"no server answers a customer: see {Path.cwd()}/shop.log")
        patience = 0.02 if dice.random() < 0.2 else 10.0  # some hang up
        with suppress(httpx.TransportError):
            answer = httpx.post(f"http://{shop.web}/orders", json=asdict(basket), headers=headers, timeout=patience)
            if answer.status_code == 201:
                numbers.append(answer.json()["id"])
            elif answer.status_code != 409 and answer.status_code < 500:  # those say: come back
                raise SystemExit(f"refused: {answer.status_code} {answer.text}")
        time.sleep(dice.uniform(0.0, 0.2))
    if len(set(numbers)) > 1:
        raise SystemExit(f"two orders for one key: {numbers}")
    return numbers[0]


class Killer(threading.Thread):
    """Kills one process after the other and starts it again at once, while the ``with`` block lasts, but each not more
    than ``most`` times, and not less than once."""

    def __init__(self, shop: Shop, every: float, most: int, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self.kills: Counter[str] = Counter()
        self._enough = threading.Event()
        self._shop, self._every, self._most, self._dice = shop, every, most, dice

    def run(self) -> None:
        for _ in range(self._most):
            for name in self._dice.sample(KILLED, len(KILLED)):
                time.sleep(self._dice.uniform(0.0, 2 * self._every))
                self._shop.kill(name)
                self._shop.start(name)
                self.kills[name] += 1
            if self._enough.is_set():
                return

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()


def free_port() -> int:
    """Four in a row, below those that outgoing connections take: they must be free when a process starts again."""
    while True:
        port = random.randrange(11_000, 30_000)
        with suppress(OSError), ExitStack() as bound:
            for at in range(4):
                bound.enter_context(socket.create_server(("127.0.0.1", port + at)))
            return port


def chaos(orders: int, every: float, most: int, lease: int, patience: float, dice: random.Random) -> bool:
    from books import compare, unfinished  # now that it is said where the databases are
    from orders import Basket
    from run import Shop

    def basket() -> Basket:
        card = "declined" if dice.random() < 0.1 else "visa"
        return Basket("chair", dice.randrange(100, 10_000), card, "Atlantis" if dice.random() < 0.1 else "NL")

    baskets, turns = [basket() for _ in range(orders)], [random.Random(dice.random()) for _ in range(orders)]
    began = time.monotonic()
    deadline = began + patience
    with Path("shop.log").open("w") as output, Shop(free_port(), lost=LOST, output=output) as shop:
        if any(found for _, _, found in compare({})):
            raise SystemExit("this shop has orders already, which would be counted too: name an empty database")
        with Killer(shop, every, most, random.Random(dice.random())) as killer, ThreadPoolExecutor(BUYERS) as buyers:
            numbers = list(buyers.map(lambda basket, turn: buy(shop, basket, turn, deadline), baskets, turns))
            while unfinished() > orders // 10 and time.monotonic() < deadline:
                time.sleep(0.1)
        while unfinished() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2 * lease + 1)  # whatever is still to be delivered again
        if (name := shop.ended()) is not None:
            raise SystemExit(f"{name} has ended by itself: see {Path.cwd()}/shop.log")
        lines = compare(dict(zip(numbers, baskets, strict=True)))
    kills = ", ".join(f"{name} {killer.kills[name]} times" for name in KILLED)
    print(f"{orders} orders in {time.monotonic() - began:.0f} s; killed: {kills}\n")
    print(f"{'':36}expected   found")
    for what, expected, found in lines:
        print(f"{what:36}{expected:8}{found:8}{'' if expected == found else '   WRONG'}")
    wrong = any(expected != found for _, expected, found in lines)
    print("\n" + ("something was lost or doubled" if wrong else "nothing lost, nothing doubled"))
    return wrong


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    options.add_argument("--orders", type=int, default=500)
    options.add_argument("--every", type=float, default=1.0, help="seconds between two kills, on average")
    options.add_argument("--kills", type=int, default=1_000, help="of each process, at most")
    options.add_argument("--lease", type=int, default=4, help="seconds that the work of a killed process waits")
    options.add_argument("--patience", type=float, default=900.0, help="seconds until it is given up")
    options.add_argument(
        "--folder", type=Path, help="where to keep the shop; default: a new one, kept if it goes wrong"
    )
    options.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = options.parse_args()
    os.environ.setdefault("EFFECTONCE_BROKER", f"sqlite:///queue.db?ack_window={2 * given.lease}s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it ends what it has started
    os.environ["SHOP_LEASE"] = f"{given.lease}s"
    folder = given.folder or Path(tempfile.mkdtemp(prefix="shop-"))
    os.chdir(folder)
    print(f"seed {given.seed}, in {folder}", flush=True)
    wrong = chaos(given.orders, given.every, given.kills, given.lease, given.patience, random.Random(given.seed))
    if not wrong and given.folder is None:
        shutil.rmtree(folder)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
