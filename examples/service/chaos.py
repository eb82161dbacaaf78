"""Orders flow in while the API, the relay and the worker are killed with -9, again and again: python chaos.py

Some customers hang up and ask again, some cards are declined, some orders cannot be shipped, and some answers of the
bank and of the post office get lost. In the end everything is counted; the exit code is 1 if anything was lost or
doubled.
On servers: with EFFECTONCE_STORE and EFFECTONCE_BROKER, in an empty database.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import httpx

from effectonce.http.client.for_httpx import AsyncIdempotentTransport

HERE: Final = Path(__file__).parent
KILLED: Final = ("api", "relay", "worker")
LOST_ANSWERS: Final = 0.1
CHAIRS: Final = 10_000


class Basket(NamedTuple):
    """An order, and what must become of it."""

    amount: int
    card: str
    country: str

    @property
    def declined(self) -> bool:
        return self.card == "declined"

    @property
    def refunded(self) -> bool:
        return not self.declined and self.country == "Atlantis"

    @property
    def shipped(self) -> bool:
        return not self.declined and not self.refunded


class Line(NamedTuple):
    what: str
    expected: int
    lost: int
    doubled: int


def tally(what: str, expected: Iterable[str], found: Iterable[str]) -> Line:
    """Each of ``expected`` must be in ``found`` once, and nothing else."""
    wanted, counts = set(expected), Counter(found)
    return Line(what, len(wanted), len(wanted - counts.keys()), counts.total() - len(wanted & counts.keys()))


class Service:
    """The processes of the service, by their names. Leaving the ``with`` block ends them."""

    def __init__(self, port: int, log: IO[str]) -> None:
        self.api, self.outside, self.worker = (f"http://127.0.0.1:{port + at}" for at in range(3))
        self._commands = {
            "outside": f"uvicorn service.outside:app --port {port + 1} --log-level warning",
            "api": f"uvicorn service.api:app --port {port} --log-level warning",
            "relay": "effectonce run service.relay:relay",
            "worker": f"effectonce run service.fulfilment:worker service.stock:worker --listen 127.0.0.1:{port + 2}",
        }
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
            "SERVICE_OUTSIDE": self.outside,
            "SERVICE_LOST_ANSWERS": str(LOST_ANSWERS),
        }
        self._log = log
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", *self._commands[name].split()]
        self._running[name] = subprocess.Popen(command, env=self._environment, stdout=self._log, stderr=self._log)

    def kill(self, name: str) -> None:
        """As a power cut does it: without a word."""
        self._running[name].kill()
        self._running[name].wait()
        self.kills[name] += 1

    def require_all(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                raise SystemExit(f"{name} has ended by itself with {process.returncode}: see {Path.cwd()}/service.log")

    def __enter__(self) -> Service:
        upgrade = [sys.executable, "-m", "alembic", "-c", str(HERE / "alembic.ini"), "upgrade", "head"]
        subprocess.run(upgrade, env=self._environment, stdout=self._log, stderr=self._log, check=True)
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def wait_until_ready(service: Service, client: httpx.AsyncClient, deadline: float) -> None:
    for url in (f"{service.outside}/ledger", f"{service.api}/metrics", f"{service.worker}/readyz"):
        while True:
            service.require_all()
            with suppress(httpx.TransportError):
                if (await client.get(url)).is_success:
                    break
            if time.monotonic() > deadline:
                raise SystemExit(f"{url} does not answer: see {Path.cwd()}/service.log")
            await asyncio.sleep(0.1)


async def buy(client: httpx.AsyncClient, basket: Basket, dice: random.Random, starts_within: float) -> str:
    """Return the number of the order. The customer asks until there is an answer; some hang up, some ask twice."""
    headers = {"Idempotency-Key": f'"{uuid.UUID(int=dice.getrandbits(128))}"', "Authorization": "Bearer ann"}

    async def ask() -> str:
        answer = await client.post("/orders", json={"item": "chair", **basket._asdict()}, headers=headers)
        return str(answer.raise_for_status().json()["order"])

    await asyncio.sleep(dice.uniform(0, starts_within))
    if dice.random() < 0.2:
        with suppress(TimeoutError):
            await asyncio.wait_for(ask(), 0.03)
    if dice.random() < 0.2:
        await ask()
    return await ask()


async def kill_processes(service: Service, dice: random.Random, rounds: int, every: float) -> None:
    """Kill one process after the other, and start each again at once."""
    for _ in range(rounds):
        for name in dice.sample(KILLED, len(KILLED)):
            await asyncio.sleep(dice.uniform(0, 2 * every))
            service.kill(name)
            service.start(name)


async def count(client: httpx.AsyncClient, service: Service, bought: dict[str, Basket]) -> list[Line]:
    """Compare the answers that the customers got with the database, the bank and the post office."""
    from service.database import Order, Shipment, Stock, sessions  # now that it is said where the database is
    from sqlalchemy import select

    async with sessions() as session:
        orders = list(await session.scalars(select(Order)))
        shipments = list(await session.scalars(select(Shipment.order_id)))
        gone = CHAIRS - (await session.get_one(Stock, "chair")).pieces
    ledger: dict[str, Any] = (await client.get(f"{service.outside}/ledger")).raise_for_status().json()
    charges = [(order, id) for kind, order, _, id in ledger["bookings"] if kind == "charge"]
    refunds = [(order, id) for kind, order, _, id in ledger["bookings"] if kind == "refund"]
    shipped = [order for order, basket in bought.items() if basket.shipped]
    return [
        tally("orders", bought, (order.id for order in orders)),
        tally("charges", (id for id in bought if not bought[id].declined), (order for order, _ in charges)),
        tally("... that their orders know", (id for _, id in charges), (o.charge for o in orders if o.charge)),
        tally("refunds", (id for id in bought if bought[id].refunded), (order for order, _ in refunds)),
        tally("... that their orders know", (id for _, id in refunds), (o.refund for o in orders if o.refund)),
        tally("shipments", shipped, shipments),
        Line("chairs gone", len(shipped), max(0, len(shipped) - gone), max(0, gone - len(shipped))),
        tally(
            "mails",
            (f"Your order {id}: {'shipped' if bought[id].shipped else 'cancelled'}." for id in bought),
            ledger["mails"],
        ),
    ]


async def chaos(options: argparse.Namespace, log: IO[str]) -> Sequence[Line]:
    dice = random.Random(options.seed)
    baskets = [
        Basket(
            dice.randrange(100, 10_000),
            "declined" if dice.random() < 0.1 else "visa",
            "Atlantis" if dice.random() < 0.15 else "NL",
        )
        for _ in range(options.orders)
    ]
    started_at = time.monotonic()
    transport = AsyncIdempotentTransport(retries=100, max_wait=f"{options.give_up_after}s")
    with Service(free_port(3), log) as service:
        async with httpx.AsyncClient(transport=transport, base_url=service.api, timeout=10) as client:
            await wait_until_ready(service, client, started_at + options.give_up_after)
            if any(line.doubled for line in await count(client, service, {})):
                raise SystemExit("this service has orders already, which would be counted: name an empty database")
            duration = options.rounds * len(KILLED) * options.every
            killing = asyncio.create_task(kill_processes(service, dice, options.rounds, options.every))
            customers = [random.Random(dice.random()) for _ in baskets]
            numbers = await asyncio.gather(
                *(buy(client, basket, dice, duration) for basket, dice in zip(baskets, customers, strict=True))
            )
            await killing
            bought = dict(zip(numbers, baskets, strict=True))
            while any(line.lost for line in await count(client, service, bought)):
                if time.monotonic() - started_at > options.give_up_after:
                    break
                await asyncio.sleep(0.2)
            await asyncio.sleep(2 * options.lease + 1)  # for whatever is still to be delivered again
            service.require_all()
            lines = await count(client, service, bought)
    kills = ", ".join(f"{name} {service.kills[name]} times" for name in KILLED)
    print(f"{options.orders} orders in {time.monotonic() - started_at:.0f} s; killed: {kills}\n")
    return lines


def free_port(row: int) -> int:
    """The first of ``row`` free ports, below those that outgoing connections take."""
    while True:
        port = random.randrange(22_000, 32_000)
        with suppress(OSError), ExitStack() as bound:
            for at in range(row):
                bound.enter_context(socket.create_server(("127.0.0.1", port + at)))
            return port


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5, help="how often each process is killed")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills, on average")
    parser.add_argument("--lease", type=int, default=4, help="seconds that the work of a killed process waits")
    parser.add_argument("--give-up-after", type=float, default=300.0, help="end as failed after so many seconds")
    parser.add_argument("--folder", type=Path, help="for the files; default: a new one, kept if it goes wrong")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    os.environ.setdefault("EFFECTONCE_BROKER", f"sqlite:///queue.db?ack_window={2 * options.lease}s")
    os.environ["SERVICE_LEASE"] = f"{options.lease}s"
    folder = options.folder or Path(tempfile.mkdtemp(prefix="service-"))
    os.chdir(folder)
    sys.path.insert(0, str(HERE))
    print(f"seed {options.seed}, in {folder}", flush=True)
    with Path("service.log").open("w") as log:
        lines = asyncio.run(chaos(options, log))
    print(f"{'':30}{'expected':>9}{'lost':>9}{'doubled':>9}")
    for what, expected, lost, doubled in lines:
        print(f"{what:30}{expected:9}{lost:9}{doubled:9}")
    wrong = any(line.lost or line.doubled for line in lines)
    print("\n" + ("something was lost or doubled" if wrong else "nothing lost, nothing doubled"))
    if not wrong and options.folder is None:
        shutil.rmtree(folder)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
