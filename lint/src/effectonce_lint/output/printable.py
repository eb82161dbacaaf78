"""Formats paths and text so that they may be printed."""

from __future__ import annotations

import os


def display_path(path: str) -> str:
    """A path as people write it: relative to the current folder if it is below, with forward slashes."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return (path if relative.startswith("..") else relative).replace(os.sep, "/")


def strip_control_characters(text: str) -> str:
    """Escape what a terminal would obey: the names in a source file may be anything."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)
