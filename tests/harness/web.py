"""Python programs as processes that can be killed: web servers, and workers that listen on no port."""

import os
import sys
from collections.abc import Mapping, Sequence

from tests.harness.installed import ROOT
from tests.harness.process import Server


class Program(Server):
    """A Python program; ``{port}`` in its arguments is a free port. It is ready when its log contains `ready`.

    It runs in its directory, with this checkout on the path. `variables` may be changed between a kill and a restart.
    """

    name = "program"
    close_signal = Server.stop_signal  # tests look at what it does at its end
    ready = ""

    def __init__(self, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._arguments = arguments
        self.variables = dict(variables or {})
        self._log_start = 0  # where the log of this start begins

    def _launch(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        super()._launch()

    def _listens(self) -> bool:
        return self.ready in self.log.read_text(errors="replace")[self._log_start :]

    def command(self) -> Sequence[str]:
        return [sys.executable, *(argument.replace("{port}", str(self.port)) for argument in self._arguments)]

    def environment(self) -> Mapping[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), self.variables.get("PYTHONPATH"))))
        return {**os.environ, **self.variables, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


class Web(Program):
    """A program that serves HTTP. Ready when it listens on its port."""

    name = "web"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _listens(self) -> bool:
        return Server._listens(self)


def web(*arguments: str, variables: Mapping[str, str] | None = None) -> Web:
    """`web("-m", "uvicorn", "shop:app", "--port", "{port}")`, started."""
    return Web(*arguments, variables=variables).start()


def program(*arguments: str, ready: str, variables: Mapping[str, str] | None = None) -> Program:
    """`program("-m", "celery", "-A", "tasks", "worker", ready="ready.")`, started."""
    made = Program(*arguments, variables=variables)
    made.ready = ready
    return made.start()
