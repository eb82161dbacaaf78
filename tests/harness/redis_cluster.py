"""A Redis Cluster: three masters, and replicas that take their place: `with redis_cluster(replicas=1) as cluster:`."""

import time
from collections.abc import Callable
from typing import Self

from tests.harness.process import ServerFailed
from tests.harness.servers import Redis, redis_binary

_LOGGED = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0")


class RedisCluster:
    """Three masters, each with as many replicas as asked for; `nodes` holds the masters first."""

    def __init__(self, binary: str, replicas: int) -> None:
        self.nodes: list[Redis] = []
        try:
            for _ in range(3 * (1 + replicas)):
                self.nodes.append(self._node(binary).start())
            self._join()
        except BaseException:
            self.close(failed=True)
            raise

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def close(self, failed: bool = False) -> None:
        for node in self.nodes:
            node.close(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    @staticmethod
    def _node(binary: str) -> Redis:
        return Redis(binary, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *_LOGGED)

    def fail_over(self) -> None:
        """Kill a master, and wait until its replica has its slots; then the dead one comes back as a replica."""
        victim = self._a_master()
        victim.kill()
        others = [node for node in self.nodes if node is not victim]
        self._wait_until(lambda: all(self._is_whole(node, without=victim.port) for node in others))
        victim.restart()
        self._wait_until(lambda: all(self._is_whole(node) for node in self.nodes))

    def pause(self, seconds: float) -> None:
        """Freeze a master until its replica has its slots, and ``seconds`` longer; then it goes on."""
        victim = self._a_master()
        victim.stop()
        others = [node for node in self.nodes if node is not victim]
        self._wait_until(lambda: all(self._is_whole(node, without=victim.port) for node in others))
        time.sleep(seconds)
        victim.resume()
        self._wait_until(lambda: all(self._is_whole(node) for node in self.nodes))

    def roll(self) -> None:
        """Restart one node after another."""
        for node in self.nodes:
            node.restart()
            self._wait_until(lambda: all(self._is_whole(node) for node in self.nodes))

    def _a_master(self) -> Redis:
        """The first node that is a master with a replica."""
        return next(node for node in self.nodes if node.execute("INFO", "replication").get("connected_slaves", 0))

    def _is_whole(self, node: Redis, without: int | None = None) -> bool:
        """Whether ``node`` sees all slots served, none of them by the one ``without``, and every replica in step."""
        slots = node.execute("CLUSTER SLOTS")
        is_served = self._is_ready(node) and all(entry[2][1] != without for entry in slots)
        role = node.execute("INFO", "replication")
        return is_served and (role["role"] == "master" or without is not None or role["master_link_status"] == "up")

    def _join(self) -> None:
        masters = self.nodes[:3]
        bounds = (0, 5461, 10923, 16384)
        for index, node in enumerate(self.nodes):
            node.execute("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
            node.execute("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        for index, master in enumerate(masters):
            slots = range(bounds[index], bounds[index + 1])
            master.execute("CLUSTER", "ADDSLOTS", *slots)
        self._wait_until(lambda: all(self._count_known_nodes(node) == len(self.nodes) for node in self.nodes))
        for index, replica in enumerate(self.nodes[3:]):
            master_id = str(masters[index % 3].execute("CLUSTER", "MYID"))
            replica.execute("CLUSTER", "REPLICATE", master_id)
        self._wait_until(lambda: all(self._is_whole(node) for node in self.nodes))

    @staticmethod
    def _count_known_nodes(node: Redis) -> int:
        return int(node.execute("CLUSTER INFO")["cluster_known_nodes"])

    @staticmethod
    def _is_ready(node: Redis) -> bool:
        return bool(node.execute("CLUSTER INFO")["cluster_state"] == "ok")

    @staticmethod
    def _wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ServerFailed("the Redis Cluster was not complete in time")
            time.sleep(0.05)


def redis_cluster(replicas: int = 0) -> RedisCluster:
    return RedisCluster(redis_binary(), replicas)
