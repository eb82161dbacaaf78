"""A PostgreSQL primary with a standby, of which either may take the other's place.

with postgres_pair(synchronous=True) as pair:
    psycopg.connect(pair.url)     # finds the primary
    pair.fail_over()              # kill -9 for the primary, the standby is promoted; the dead one becomes its standby
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psycopg

from tests.harness import servers
from tests.harness.process import ServerFailed
from tests.harness.proxy import FaultProxy

LAG_S = 0.3  # of an asynchronous standby whose primary dies


class PostgresNode(servers.Postgres):
    """One of the two. ``source``: the primary that it copies before its first start, and then follows."""

    name = "pg-node"

    def __init__(self, binaries: Path, options: dict[str, str], source: str | None) -> None:
        super().__init__(binaries, durable=True, options=options)
        self.source = source
        self.link: FaultProxy | None = None

    def start(self) -> Self:
        super().start()
        self.link = FaultProxy(self.port)  # of its standby to it
        return self

    def close(self, failed: bool = False) -> Path | None:
        kept = super().close(failed)
        if self.link is not None:
            self.link.close()
        return kept

    @property
    def linked_url(self) -> str:
        assert self.link is not None
        return self.link.through(self.url)

    def prepare(self) -> None:
        if self.source is None:
            super().prepare()
            return
        servers.own_as_daemon(self.dir)
        self.copy(self.source)

    def copy(self, source: str) -> None:
        """Copy the data of the primary at ``source``, and follow it from the next start on."""
        shutil.rmtree(self._data, ignore_errors=True)
        program = str(self._binaries / "pg_basebackup")
        self.run(self.unprivileged(program, "-d", source, "-D", str(self._data), "-R", "-c", "fast", "-X", "stream"))

    def query(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, connect_timeout=5, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class PostgresPair:
    """The two servers. Commits wait for the standby if it is ``synchronous``; else a failover loses the latest."""

    def __init__(self, synchronous: bool, **options: str) -> None:
        self._binaries = servers.postgres_binaries()
        self._options = options
        self.synchronous = synchronous
        self.primary = PostgresNode(self._binaries, options, source=None).start()
        self.standby: PostgresNode | None = None
        try:
            if synchronous:  # the copy has these settings, too: they hold after a failover
                self.primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
                self.primary.query("ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
            self.standby = PostgresNode(self._binaries, options, source=self.primary.linked_url).start()
            self._wait_for_standby()
            if synchronous:
                self.primary.query("SELECT pg_reload_conf()")
                self._wait_until(lambda: self._replication() == ["sync"], "wait for its standby")
        except BaseException:
            self.close(failed=True)
            raise
        self._ports = (self.primary.port, self.standby.port)

    @property
    def url(self) -> str:
        """The URL of whichever is the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=2"

    def fail_over(self) -> None:
        """Kill the primary, promote its standby, and let the dead server come back as the standby. An asynchronous
        standby lags behind then."""
        if not self.synchronous:
            self._cut_link()
            time.sleep(LAG_S)
        self.primary.kill()
        self._promote()
        self._rejoin()

    def isolate(self, seconds: float) -> None:
        """Cut the primary off from its standby, and promote that. The old primary goes on for a while, and clients
        reach both; then it is ended and comes back as the standby."""
        self._cut_link()
        self._promote()
        time.sleep(seconds)
        assert self.standby is not None
        self.standby.kill()
        self._rejoin()

    def _cut_link(self) -> None:
        assert self.primary.link is not None
        self.primary.link.blackhole = True

    def pause(self, seconds: float) -> None:
        self.primary.stop()
        time.sleep(seconds)
        self.primary.resume()

    def roll(self) -> None:
        """Restart the standby, then the primary."""
        assert self.standby is not None
        self.standby.restart()
        self._wait_for_standby()
        self.primary.restart()
        self._wait_for_standby()

    def _promote(self) -> None:
        """The standby becomes the primary. The old one is not touched."""
        assert self.standby is not None
        self.standby.query("SELECT pg_promote(wait_seconds => 30)")
        self.primary, self.standby = self.standby, self.primary

    def _rejoin(self) -> None:
        assert self.standby is not None
        assert self.standby.link is not None
        self.standby.link.heal()
        self.standby.link.reset()
        self.standby.copy(self.primary.linked_url)
        self.standby.restart()
        self._wait_for_standby()

    def _replication(self) -> list[object]:
        found = self.primary.query("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
        return [state for (state,) in found]

    def _wait_for_standby(self) -> None:
        self._wait_until(lambda: bool(self._replication()), "get a standby")

    @staticmethod
    def _wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ServerFailed(f"the primary did not {what}")
            time.sleep(0.05)

    def close(self, failed: bool = False) -> None:
        for node in (self.standby, self.primary):
            if node is not None:
                node.close(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


def postgres_pair(*, synchronous: bool, **options: str) -> PostgresPair:
    """``options`` are settings of both servers."""
    return PostgresPair(synchronous, **options)
