"""Loading by name: the backend of a URL, and the user's object that ``module:name`` stands for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from effectonce.errors import ConfigurationError, UnknownScheme, scrubbed, show


def load(url: str, kind: Literal["store", "broker"], schemes: Mapping[str, tuple[str, str]]) -> Any:
    """The backend for ``url``, which has opened nothing yet.

    ``schemes`` names, for each scheme of ours, a module of this package and a class in it. Other schemes are looked for
    in the entry-point groups ``effectonce.stores`` and ``effectonce.brokers``.
    """
    from effectonce.values.urls import Address  # with urllib, a third of the package's import time

    address = Address(url)
    if address.scheme in schemes:
        module, name = schemes[address.scheme]
        make: Callable[[Address], Any] = getattr(importlib.import_module(f"effectonce.{module}"), name)
        return make(address)
    from importlib.metadata import entry_points  # slow to import, and only needed for those of others

    for point in entry_points(group=f"effectonce.{kind}s"):
        if point.name == address.scheme:
            return point.load()(address)
    known = ", ".join(f"{scheme}://" for scheme in sorted(schemes))
    raise UnknownScheme(f"no {kind} is known by {show(address.scheme) or '(no scheme)'}://; known are {known}")


def url_in_environment(variable: str, example: str) -> str:
    """The URL in ``variable``, or an error that shows ``example``."""
    url = os.environ.get(variable)
    if not url:
        raise ConfigurationError(
            f"{example.partition('(')[0]}() was called without a URL and {variable} is not set; pass one, for example "
            f"{example}"
        )
    return url


def load_object(name: str, example: str) -> Any:
    """The object that ``module:name`` names on a command line; modules of the working directory are found."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ConfigurationError(f"{show(name)!r} is not a MODULE:NAME, as in {example}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for step in path.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{show(name)!r} was not found: {error}") from error
    except Exception as error:
        raise ConfigurationError(
            f"{show(name)!r} could not be imported: {type(error).__name__}: {show(scrubbed(str(error)), 300)} (try: "
            f"python -c 'import {show(module)}')"
        ) from error
    return found
