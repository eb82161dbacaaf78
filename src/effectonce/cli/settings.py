"""Where the settings of a command come from: its option, the environment (``EFFECTONCE_STORE``), or
``[tool.effectonce]`` in the next pyproject.toml, in this order.

    [tool.effectonce]
    store = "postgresql://shop@db/shop"
    broker = "amqp://mq"
    audit = "audit.jsonl"
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from effectonce.errors import ConfigurationError, show

from . import terminal

_EXAMPLES = {"store": "sqlite:///shop.db", "broker": "sqlite:///queue.db"}


def setting(name: str, given: str | None = None) -> str | None:
    """What is set for ``name``; None where nothing is."""
    value = given or os.environ.get(variable(name)) or in_project(name)
    if value is None or isinstance(value, str):
        if value is not None and "://" in value:
            terminal.keep_secret(value)
        return value or None
    raise ConfigurationError(f"{name} in [tool.effectonce] is of type {type(value).__name__}, and must be a text")


def url(name: str, given: str | None = None) -> str:
    """The URL that is set for ``name``; `ConfigurationError`, which says how to set it, where none is."""
    found = setting(name, given)
    if found is None:
        raise ConfigurationError(
            f"no {name} is named: give its URL (--{name} {_EXAMPLES[name]}), set {variable(name)}, or write "
            f'{name} = "…" under [tool.effectonce] in pyproject.toml'
        )
    return found


def variable(name: str) -> str:
    """The variable of the environment that sets ``name``."""
    return f"EFFECTONCE_{name.upper()}"


def in_project(name: str) -> Any:
    """The value of ``name`` in ``[tool.effectonce]``; None where there is none."""
    return _project(Path.cwd()).get(name)


@cache
def _project(folder: Path) -> dict[str, Any]:
    """``[tool.effectonce]`` of the pyproject.toml in ``folder``, or in the nearest one above that has one."""
    for each in (folder, *folder.parents):
        file = each / "pyproject.toml"
        if file.is_file():
            import tomllib  # when there is something to read: `--help` stays quick

            try:
                tools = tomllib.loads(file.read_text("utf-8")).get("tool", {})
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"{show(file)} cannot be read: {error}") from error
            found = tools.get("effectonce", {}) if isinstance(tools, dict) else {}
            return found if isinstance(found, dict) else {}
    return {}
