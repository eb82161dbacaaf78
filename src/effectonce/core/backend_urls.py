"""The backend for a URL: of this package by its scheme, or of a third party by its entry point."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from effectonce.errors import ConfigurationError, UnknownScheme, show


def load_backend(
    url: str,
    kind: Literal["store", "broker"],
    schemes: Mapping[str, tuple[str, str]],
    password: Callable[[], str] | None = None,
) -> Any:
    """Make the backend for ``url``. It opens nothing yet.

    ``schemes`` has the schemes of this package, each with the module and the class of its backend. Any other scheme is
    looked up in the entry-point group ``effectonce.stores`` or ``effectonce.brokers``. ``password`` returns the
    password for one connection, where the URL has none.
    """
    from effectonce.values.sqlalchemy_urls import translate  # with urllib, a third of the package's import time
    from effectonce.values.urls import Address

    address = Address(translate(url))
    address.password_provider = password
    if address.scheme in schemes:
        module, name = schemes[address.scheme]
        make: Callable[[Address], Any] = getattr(importlib.import_module(f"effectonce.{module}"), name)
        return make(address)
    from importlib.metadata import entry_points  # slow to import; only third parties need it

    for point in entry_points(group=f"effectonce.{kind}s"):
        if point.name == address.scheme:
            return point.load()(address)
    database, plus, _ = address.scheme.partition("+")
    if plus and database in schemes:
        raise UnknownScheme(
            f"there is no {kind} for {show(address.scheme)}://, and no such driver of SQLAlchemy's; leave it out: "
            f"{database}://"
        )
    known = ", ".join(f"{scheme}://" for scheme in sorted(schemes))
    raise UnknownScheme(f"there is no {kind} for {show(address.scheme) or '(no scheme)'}://; the schemes are {known}")


def url_in_environment(variable: str, example: str) -> str:
    """The URL in the environment variable. If it is not set, the error shows the call ``example``."""
    url = os.environ.get(variable)
    if not url:
        raise ConfigurationError(
            f"{example.partition('(')[0]}() was called without a URL and {variable} is not set; pass one, for example "
            f"{example}"
        )
    return url
