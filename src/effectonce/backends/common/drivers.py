"""Whether a backend's driver is installed."""

from __future__ import annotations

from importlib.util import find_spec

from effectonce.errors import MissingDriver


def require_driver(product: str, extra: str, *modules: str) -> None:
    """`MissingDriver` where one of ``modules`` is not installed, which ``effectonce[extra]`` brings. Imports none."""
    for module in modules:
        try:
            installed = find_spec(module) is not None
        except ImportError:  # of the package that it is in
            installed = False
        if not installed:
            raise MissingDriver(f"{product} needs {module}; install it with: pip install 'effectonce[{extra}]'")
