"""RabbitMQ, from Debian's package: `with rabbitmq() as server:`. It takes some seconds to start."""

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.harness import installed
from tests.harness.installed import enter_root
from tests.harness.process import Server, ServerFailed, free_port

_DEBIAN_SCRIPT = Path("usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on the path switches the user


class Epmd(Server):
    """Erlang's register of names. A node would start one by itself, which would outlive it."""

    name = "epmd"

    def __init__(self, binary: str) -> None:
        super().__init__()
        self._binary = binary

    def command(self) -> Sequence[str]:
        return [self._binary, "-address", "127.0.0.1", "-port", str(self.port)]


class RabbitMQ(Server):
    """`settings` are those of the application `rabbit`, as Erlang terms: `{"consumer_timeout": "10000"}`; `config` are
    lines of its configuration file, and `plugins` are those that it enables."""

    name = "rabbitmq"

    def __init__(
        self, script: str, epmd: Epmd, settings: Mapping[str, str], config: Sequence[str], plugins: Sequence[str]
    ) -> None:
        super().__init__()
        self._script = script
        self.epmd = epmd
        self._settings = settings
        self._config = config
        self._plugins = plugins
        self._dist_port = free_port()
        self._logged = 0

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def node(self) -> str:
        return f"{self.dir.name}@localhost"

    def command(self) -> Sequence[str]:
        config = (f"listeners.tcp.1 = 127.0.0.1:{self.port}", *self._config)
        (self.dir / "rabbitmq.conf").write_text("\n".join(config) + "\n")
        (self.dir / "plugins").write_text(f"[{', '.join(self._plugins)}].\n")
        (self.dir / "env.conf").touch()
        self._logged = self.log.stat().st_size
        return [self._script]

    def environment(self) -> Mapping[str, str]:
        folder = str(self.dir)
        settings = "".join(f" -rabbit {name} {value}" for name, value in self._settings.items())
        return os.environ | {
            "HOME": folder,  # Erlang's cookie
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/env.conf",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none -kernel inet_dist_use_interface {127,0,0,1}" + settings,
            "ERL_EPMD_PORT": str(self.epmd.port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script then becomes the node instead of watching over it
        }

    def require_started(self) -> None:
        """Raise until its log says that it has started."""
        with self.log.open("rb") as log:
            log.seek(self._logged)
            if b"Server startup complete" not in log.read():
                raise ServerFailed("it is still starting")

    def greet(self) -> None:
        self.require_started()
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            greeting = connection.recv(4096)
        if self.dir.name.encode() not in greeting:
            raise ServerFailed(f"another than {self.node} answers on its port: {greeting!r}")

    def control(self, *command: str) -> str:
        """Run rabbitmqctl, and return its output."""
        program = Path(self._script).with_name("rabbitmqctl")
        done = subprocess.run(
            enter_root([str(program), "--quiet", "-n", self.node, *command]),
            cwd=self.dir,
            env=dict(self.environment()),
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def raise_alarm(self) -> None:
        """Block publishers, as when it is short of memory."""
        self.control("eval", "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")

    def clear_alarm(self) -> None:
        self.control("eval", "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")

    def close(self, failed: bool = False) -> Path | None:
        kept = super().close(failed)
        self.epmd.close()
        return kept


def rabbitmq(*config: str, plugins: Sequence[str] = (), **settings: str) -> RabbitMQ:
    """``config`` are lines that are added to its rabbitmq.conf: ``"listeners.ssl.1 = 127.0.0.1:5671"``."""
    script, epmd = find_rabbitmq()
    return RabbitMQ(script, epmd.start(), settings, config, plugins).start()


def find_rabbitmq() -> tuple[str, Epmd]:
    """Return the path of the server's script, and an epmd that is not started yet."""
    how = ("RabbitMQ", "apt-get install rabbitmq-server", "AMQP")
    debian = (installed.NEXT if installed.wants_next() else Path("/")) / _DEBIAN_SCRIPT
    found = str(debian) if os.path.lexists(debian) else installed.find_binary("rabbitmq-server")
    script = installed.require_installed(found, *how)
    return script, Epmd(installed.require_installed(installed.find_binary("epmd"), *how))
