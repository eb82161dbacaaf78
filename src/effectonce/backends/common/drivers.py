"""Whether a backend's driver is installed."""

from __future__ import annotations

from importlib.util import find_spec

from effectonce.errors import MissingDriver


def require_driver(product: str, extra: str, *modules: str) -> None:
    """Raise `MissingDriver` where one of ``modules``, which ``effectonce[extra]`` installs, cannot be found. Imports
    none of them."""
    for module in modules:
        try:
            installed = find_spec(module) is not None
        except ImportError:  # the package that the module is in cannot be found
            installed = False
        if not installed:
            raise MissingDriver(f"{product} needs {module}; install it with: pip install 'effectonce[{extra}]'")
