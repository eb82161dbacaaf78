"""Settings of commands: from an option, the environment (``EFFECTONCE_STORE``), or ``[tool.effectonce]`` in the
nearest pyproject.toml, in this order.

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

from effectonce.display.redaction import add_secret
from effectonce.errors import ConfigurationError, show

_EXAMPLES = {"store": "sqlite:///shop.db", "broker": "sqlite:///queue.db"}


def find_setting(name: str, option: str | None = None) -> str | None:
    """Return a setting: its ``option``, else the environment, else pyproject.toml; None if it is not set."""
    value = option or os.environ.get(variable_name(name)) or find_in_pyproject(name)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{name} in [tool.effectonce] is of type {type(value).__name__}; it must be a string")
    if value and "://" in value:
        add_secret(value)
    return value or None


def require_url(name: str, option: str | None = None) -> str:
    """Return the URL that is set for ``name``. Raises `ConfigurationError`, which says how to set it, if there is
    none."""
    value = find_setting(name, option)
    if value is None:
        raise ConfigurationError(
            f"no {name} is set: give its URL (--{name} {_EXAMPLES[name]}), set {variable_name(name)}, or write "
            f'{name} = "…" under [tool.effectonce] in pyproject.toml'
        )
    return value


def variable_name(name: str) -> str:
    """Return the environment variable that sets ``name``."""
    return f"EFFECTONCE_{name.upper()}"


def find_in_pyproject(name: str) -> Any:
    """Return the value of ``name`` in ``[tool.effectonce]``; None if it is not set."""
    return _read_pyproject(Path.cwd()).get(name)


@cache
def _read_pyproject(folder: Path) -> dict[str, Any]:
    """Read ``[tool.effectonce]`` from the pyproject.toml in ``folder``, or in the nearest parent that has one."""
    for candidate in (folder, *folder.parents):
        file = candidate / "pyproject.toml"
        if file.is_file():
            import tomllib  # only when there is a file to read, so that `--help` stays quick

            try:
                tools = tomllib.loads(file.read_text("utf-8")).get("tool", {})
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"{show(file)} cannot be read: {error}") from error
            section = tools.get("effectonce", {}) if isinstance(tools, dict) else {}
            return section if isinstance(section, dict) else {}
    return {}
