"""Loading the user's object that ``module:name`` on the command line stands for."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from effectonce.errors import ConfigurationError, scrub_urls, show


def load_object(name: str, example: str) -> Any:
    """Import the object, like ``shop.worker:worker``. Modules of the working directory can be imported, too.

    ``example`` stands in the error about a name of another form.
    """
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
    except Exception as error:
        raise ConfigurationError(
            f"{show(name)!r} could not be imported: {type(error).__name__}: {show(scrub_urls(str(error)), 300)} (try: "
            f"python -c 'import {show(module)}')"
        ) from error
    return value
