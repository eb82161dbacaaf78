"""Where the programs of the servers are: on this machine, in a Python package, or in the root of newer ones.

`make servers NEXT=1` unpacks Debian's unstable into `.servers/next`. With `EFFECTONCE_TEST_NEXT=1` the harness finds
the servers there, and starts them inside: the rest of the harness does not notice.
"""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
NEXT = ROOT / ".servers" / "next"

_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
_NEXT_PATH = os.pathsep.join(str(NEXT / folder) for folder in ("usr/bin", "usr/sbin"))
#: Programs that the root does not have, or that are the same there.
_OF_THIS_MACHINE = frozenset(("java", "node", "npm", "chromium", "faketime"))

#: A program in the root sees this machine's processes, devices, users and temporary files. The mounts end with it.
_ENTER = """
set -e
root=$0 temporary=$1 folder=$PWD
shift
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind /etc/passwd "$root/etc/passwd"
case $temporary in
    /dev/*) ;;
    *) mkdir -p "$root$temporary"; mount --bind "$temporary" "$root$temporary" ;;
esac
exec chroot "$root" env -C "$folder" "$@"
"""


class Missing(Exception):
    """A server that is not installed here; says how to install it."""

    def __init__(self, server: str, install: str, variable: str | None = None) -> None:
        instead = f" (or set {variable} to a running one)" if variable else ""
        super().__init__(f"{server} is not installed: {install}{instead}")

    @classmethod
    def because(cls, reason: str) -> Self:
        """Make the error that another process raised, from its text."""
        missing = cls.__new__(cls)
        missing.args = (reason,)
        return missing


def wants_next() -> bool:
    """Whether this run uses the newer servers. Raises `Missing` if it does and they cannot run here."""
    if os.environ.get("EFFECTONCE_TEST_NEXT") != "1":
        return False
    if os.geteuid() != 0:
        raise Missing("a newer server", "run as root: it is started in a root of its own")
    if not (NEXT / ".complete").exists():
        raise Missing("a newer server", "make servers NEXT=1")
    return True


def find_binary(name: str) -> str | None:
    """Return the path of a program: on this machine, or in the root if this run uses the newer servers."""
    own_path = _NEXT_PATH if name not in _OF_THIS_MACHINE and wants_next() else _PATH
    return shutil.which(name, path=own_path)


def require_installed(path: str | None, server: str, install: str, variable: str) -> str:
    """Return ``path``; raise `Missing` if it is None."""
    if path is None:
        raise Missing(server, install, f"EFFECTONCE_TEST_{variable}_URL")
    return path


def find_package_folder(package: str) -> Path | None:
    """Return the folder of a Python package, without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def enter_root(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` where its program is: inside the root, if that is named in it."""
    inside = [part.removeprefix(str(NEXT)) if part.startswith(f"{NEXT}/") else part for part in command]
    if inside == list(command):
        return inside
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER]
    return [*enter, str(NEXT), tempfile.gettempdir(), *inside]
