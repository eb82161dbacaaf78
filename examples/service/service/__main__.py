"""The whole service in one process, until Ctrl-C: python -m service"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import uvicorn
from alembic import command
from alembic.config import Config


class HttpServer(uvicorn.Server):
    """A server that runs beside a worker, which handles the signals and stops it."""

    capture_signals = nullcontext  # type: ignore[assignment]

    def stop(self) -> None:
        self.should_exit = True


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m service", description="The whole service, until Ctrl-C.")
    options.add_argument("--port", type=int, default=8000, help="of the API; the fake bank listens on the next one")
    port = options.parse_args().port
    os.environ.setdefault("SERVICE_OUTSIDE", f"http://127.0.0.1:{port + 1}")

    from . import api, fulfilment, outside, relay, stock  # now that it is said where the bank is

    command.upgrade(Config(Path(__file__).parents[1] / "alembic.ini"), "head")
    process = fulfilment.worker
    process.add(stock.worker)
    process.add(relay.relay)
    process.add(HttpServer(uvicorn.Config(outside.app, port=port + 1, log_level="warning")))
    process.add(HttpServer(uvicorn.Config(api.app, port=port, log_level="warning")))
    print(f"orders: http://127.0.0.1:{port}/docs, metrics: http://127.0.0.1:{port}/metrics; Ctrl-C ends it", flush=True)
    process.run()


if __name__ == "__main__":
    main()
