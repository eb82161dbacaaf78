"""Paths and text as they may be printed."""

from __future__ import annotations

import os


def display_path(path: str) -> str:
    """A path as people write it: from here if it is below, with forward slashes."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return (path if relative.startswith("..") else relative).replace(os.sep, "/")


def strip_control_characters(text: str) -> str:
    """Without anything that a terminal would obey: names in a source file are not ours."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)
