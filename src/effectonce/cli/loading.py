"""Loading the user's object that ``module:name`` on the command line stands for."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from effectonce.errors import ConfigurationError, scrub_urls, show

from .interrupts import is_interrupt


def load_object(name: str, example: str) -> Any:
    """Import the object, like ``shop.worker:worker``. Modules of the working directory can be imported, too.

    ``example`` stands in the error about a name of another form.
    """
    if "://" in name:
        raise ConfigurationError("a URL goes with an option: --store URL or --broker URL")
    module, _, path = name.partition(":")
    if not module or not path:
        raise ConfigurationError(f"{show(name)!r} is not a MODULE:NAME, as in {example}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module)
        for attribute in path.split("."):
            value = getattr(value, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{show(name)!r} was not found: {error}") from error
    except SystemExit as error:  # it would end this command, with its own exit code
        raise ConfigurationError(
            f"{show(name)!r} could not be imported: {show(module)} calls sys.exit() when it is imported; put what it "
            "runs under if __name__ == '__main__'"
        ) from error
    except Exception as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise ConfigurationError(
            f"{show(name)!r} could not be imported: {type(error).__name__}: {show(scrub_urls(str(error)), 300)} (try: "
            f"python -c 'import {show(module)}')"
        ) from error
    return value
