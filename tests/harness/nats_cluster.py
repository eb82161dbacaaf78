"""Three NATS servers with JetStream that keep every stream threefold: `with nats_cluster() as cluster:`."""

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any, Self

from tests.harness.nats import Nats, nats_binary
from tests.harness.process import ServerFailed, free_port


class NatsNode(Nats):
    """One of the servers. ``monitor`` is the port of its monitoring."""

    name = "nats-node"

    def __init__(self, binary: str, route: int, routes: list[int], options: tuple[str, ...]) -> None:
        self.monitor = free_port()
        peers = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        own = ("--cluster_name", "eo", "--cluster", f"nats://127.0.0.1:{route}", "--routes", peers)
        super().__init__(binary, *own, "-m", str(self.monitor), *options)

    def jetstream(self, query: str = "") -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/jsz{query}", timeout=5) as answer:
            return dict(json.load(answer))

    @property
    def is_ready(self) -> bool:
        """Whether it knows a leader, and has caught up with it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/healthz", timeout=5) as answer:
                return bool(json.load(answer)["status"] == "ok")
        except OSError:
            return False


class NatsCluster:
    """The three servers. A fault hits the leader of the stream that was named, or of all streams' list."""

    def __init__(self, *options: str) -> None:
        binary = nats_binary()
        routes = [free_port() for _ in range(3)]
        self.nodes = [NatsNode(binary, route, routes, options) for route in routes]
        try:
            for node in self.nodes:
                node.start()
            self._wait_for_all()
        except BaseException:
            self.close(failed=True)
            raise

    @property
    def url(self) -> str:
        """With streams that are kept threefold."""
        return f"nats://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}?replicas=3"

    def fail_over(self) -> None:
        """Kill the leader of most streams; it comes back when another one has taken over."""
        leader = self._leader()
        leader.kill()
        self._wait_until(lambda: self._leader_among([n for n in self.nodes if n is not leader]) is not None)
        leader.restart()
        self._wait_for_all()

    def pause(self, seconds: float) -> None:
        leader = self._leader()
        leader.stop()
        time.sleep(seconds)
        leader.resume()
        self._wait_for_all()

    def roll(self) -> None:
        for node in self.nodes:
            node.restart()
            self._wait_for_all()

    def _leader(self) -> NatsNode:
        leader = self._leader_among(self.nodes)
        assert leader is not None
        return leader

    @staticmethod
    def _leader_among(nodes: list[NatsNode]) -> NatsNode | None:
        """The node that leads the most streams, or else that leads the cluster; None while there is no leader."""
        led: dict[str, int] = {}
        for account in nodes[0].jetstream("?streams=true&accounts=true").get("account_details", []):
            for stream in account.get("stream_detail", []):
                name = stream.get("cluster", {}).get("leader", "")
                led[name] = led.get(name, 0) + 1
        names = {node.dir.name: node for node in nodes}
        streams = max((name for name in led if name in names), key=lambda name: led[name], default="")
        meta = str(nodes[0].jetstream().get("meta_cluster", {}).get("leader", ""))
        return names.get(streams) or names.get(meta)

    def _wait_for_all(self) -> None:
        self._wait_until(lambda: all(node.is_ready for node in self.nodes) and self._leader_among(self.nodes))

    @staticmethod
    def _wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ServerFailed("the NATS servers were not complete in time")
            time.sleep(0.1)

    def close(self, failed: bool = False) -> None:
        for node in self.nodes:
            node.close(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


def nats_cluster(*options: str) -> NatsCluster:
    """Options as on the command line of each."""
    return NatsCluster(*options)
