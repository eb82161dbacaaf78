"""Three RabbitMQ nodes, whose quorum queues have a replica on each: `with rabbitmq_cluster() as cluster:`."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from tests.harness.process import ServerFailed
from tests.harness.rabbitmq import RabbitMQ, find_rabbitmq

COOKIE = "effectonce"


class RabbitMQNode(RabbitMQ):
    """One of the three."""

    name = "rabbit-node"

    def prepare(self) -> None:
        cookie = self.dir / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)

    def greet(self) -> None:
        """It has our port; its greeting has the name of the cluster, which may be another node's."""
        self.require_started()
        socket.create_connection(("127.0.0.1", self.port), timeout=5).close()


class RabbitMQCluster:
    """The three nodes. A fault hits the one that leads most queues."""

    def __init__(self) -> None:
        script, epmd = find_rabbitmq()
        self._epmd = epmd.start()
        self.nodes = [RabbitMQNode(script, self._epmd, {}, (), ()) for _ in range(3)]
        try:
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(RabbitMQNode.start, self.nodes))
            for node in self.nodes[1:]:
                node.control("stop_app")
                node.control("join_cluster", self.nodes[0].node)
                node.control("start_app")
            self._wait_for_all()
        except BaseException:
            self.close(failed=True)
            raise

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"amqp://guest:guest@{hosts}/"

    def fail_over(self) -> None:
        """Kill a leader, and let it come back."""
        leader = self._leader()
        leader.kill()
        time.sleep(1.0)
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

    def _leader(self) -> RabbitMQNode:
        led = self.nodes[0].control("list_queues", "leader", "--no-table-headers").split()
        return max(self.nodes, key=lambda node: led.count(node.node))

    def _wait_for_all(self) -> None:
        def is_whole() -> bool:
            for node in self.nodes:
                node.control("await_online_nodes", "3", "--timeout", "20")
            return True

        self._wait_until(is_whole)

    @staticmethod
    def _wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except ServerFailed:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def close(self, failed: bool = False) -> None:
        for node in self.nodes:
            node.close(failed)
        self._epmd.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


def rabbitmq_cluster() -> RabbitMQCluster:
    return RabbitMQCluster()
