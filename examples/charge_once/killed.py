"""Duplicates that come at once, and one whose first run was killed: python killed.py [STORE_URL]"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import effectonce as eo

URL = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///mail.db"  # a store that outlives a process
DYING = sys.argv[2:]  # the order whose process dies: this one
store = eo.connect(URL)
sent: list[str] = []


@eo.once(store, scope="examples:mailer", key="order", lease="2s", retention="7d", wait="20s")
def mail(order: str) -> str:
    if DYING:
        os._exit(9)  # like kill -9: nothing is released, so the lease has to end
    sent.append(order)
    time.sleep(0.2)
    return f"sent {order}"


def main() -> int:
    first, second = (f"order-{time.time_ns()}-{number}" for number in (1, 2))
    with ThreadPoolExecutor(5) as workers:
        outcomes = list(workers.map(mail.call, [first] * 5))  # five deliveries at once
    print(f"[first]  1 ran, {sum(outcome.replayed for outcome in outcomes)} waited and got its result")
    subprocess.run([sys.executable, __file__, URL, second])
    outcome = mail.call(second)  # delivered again, while the lease of the dead process still holds
    print(f"[second] ran in attempt {outcome.attempt}")
    print(f"[result] {len(sent)} mails for 2 orders")
    return sent != [first, second] or outcome.attempt != 2


if __name__ == "__main__":
    with store:
        sys.exit(mail(*DYING) if DYING else main())
