"""A Redis that fails over: a master, a replica that can be made stale, and three sentinels that promote it.

with sentinel() as shop:
    store = RedisStore(client=shop.client())
    shop.cut_off()          # the replica receives no more writes, and no server notices
    shop.fail_over()        # kill -9 for the master; writes that the replica did not receive are lost
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

from tests.harness import installed, servers
from tests.harness.process import Server, ServerFailed
from tests.harness.proxy import FaultProxy

NAME = "shop"
QUORUM = 2


class SentinelServer(Server):
    name = "sentinel"

    def __init__(self, binary: str, master: servers.Redis) -> None:
        super().__init__()
        self._binary = binary
        self._master = master

    def command(self) -> Sequence[str]:
        file = self.dir / "sentinel.conf"  # which the sentinel itself rewrites
        settings = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.dir}",
            f"sentinel monitor {NAME} 127.0.0.1 {self._master.port} {QUORUM}",
            f"sentinel down-after-milliseconds {NAME} 500",
            f"sentinel failover-timeout {NAME} 3000",
        )
        file.write_text("\n".join(settings) + "\n")
        return [self._binary, str(file)]

    def greet(self) -> None:
        import redis

        with redis.Redis(port=self.port, socket_timeout=5) as client:
            answering = int(client.info("server")["process_id"])
        if answering != self.pid:
            raise ServerFailed(f"process {answering} answers on the port of {self.pid}")


class Failover:
    """The master, its replica and the sentinels; see the module."""

    def __init__(self, *options: str) -> None:
        binary = installed.require_installed(
            installed.find_binary("redis-sentinel"), "Sentinel", "apt-get install redis-sentinel", "REDIS"
        )
        self._stack = ExitStack()
        try:
            self.master = self._stack.enter_context(servers.redis(*options))
            self._wire = self._stack.enter_context(FaultProxy(self.master.port))
            follow = ("--replicaof", f"127.0.0.1 {self._wire.port}", "--repl-diskless-sync-delay", "0")
            self.replica = self._stack.enter_context(servers.redis(*options, *follow))
            self._wait_until(
                lambda: self.replica.execute("INFO", "replication")["master_link_status"] == "up", "replicate"
            )
            started = (SentinelServer(binary, self.master).start() for _ in range(3))
            self.sentinels = [self._stack.enter_context(server) for server in started]
            self._wait_until(self._complete, "find each other")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the current master."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{server.port}' for server in self.sentinels)}/{NAME}/0"

    def client(self) -> Any:
        """A client of the current master."""
        return self._sentinels().master_for(NAME, socket_timeout=1)

    def wait_for_replica(self) -> None:
        """Wait until the replica has received every write."""
        if self.master.execute("WAIT", 1, 10_000) != 1:
            raise ServerFailed("the replica did not catch up")

    def cut_off(self) -> None:
        self._wire.blackhole = True

    def fail_over(self) -> None:
        """Kill the master, and wait until the sentinels have promoted the replica."""
        self.master.kill()
        self._wait_until(lambda: self._master_port() == self.replica.port, "promote the replica")
        self._wait_until(lambda: self.replica.execute("INFO", "replication")["role"] == "master", "make it the master")

    def rejoin(self) -> None:
        """Let the dead master come back as the replica of the new one; `master` and `replica` change their names."""
        self._wire.blackhole = False
        self.master, self.replica = self.replica, self.master
        self.replica.follow(self.master)
        self._wait_for_replica()

    def pause(self, seconds: float) -> None:
        """Freeze the master for longer than the sentinels wait, so that it is replaced; then it goes on, and learns
        that it is a replica now."""
        self.master.stop()
        self._wait_until(lambda: self._master_port() == self.replica.port, "promote the replica")
        time.sleep(seconds)
        self.master.resume()
        self.master, self.replica = self.replica, self.master
        self._wait_for_replica()

    def roll(self) -> None:
        """Restart the replica, then the master, which loses its role meanwhile."""
        self.replica.follow(self.master)
        self._wait_for_replica()
        self.fail_over()
        self.rejoin()

    def _wait_for_replica(self) -> None:
        self._wait_until(
            lambda: self.replica.execute("INFO", "replication").get("master_link_status") == "up", "replicate again"
        )
        self._wait_until(self._complete, "know the replica")

    def _sentinels(self) -> Any:
        from redis.sentinel import Sentinel

        addresses = [("127.0.0.1", server.port) for server in self.sentinels]
        return Sentinel(addresses, socket_timeout=1)  # type: ignore[no-untyped-call]

    def _master_port(self) -> int:
        found = self._sentinels().discover_master(NAME)
        return int(found[1])

    def _complete(self) -> bool:
        """Tell whether each sentinel knows the others and the replica."""
        known = [client.sentinel_master(NAME) for client in self._sentinels().sentinels]
        return all(state["num-slaves"] == 1 and state["num-other-sentinels"] == 2 for state in known)

    @staticmethod
    def _wait_until(condition: Any, what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except Exception as error:  # during a failover no server answers
                if time.monotonic() > deadline:
                    raise ServerFailed(f"the Redis servers did not {what}: {error!r}") from error
            if time.monotonic() > deadline:
                raise ServerFailed(f"the Redis servers did not {what}")
            time.sleep(0.05)


def sentinel(*options: str) -> Failover:
    """Options are those of the master and the replica: `"--min-replicas-to-write", "1"`."""
    return Failover(*options)
