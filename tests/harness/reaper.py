"""The reaper ends the servers of a test process that died without ending them itself.

A killed or crashed test process runs no teardown. This small process holds the read end of a pipe from it:
lines `+PID FOLDER` and `-PID` say which servers run; the end of the pipe says that the test process is gone.
"""

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import psutil

_pipe: IO[bytes] | None = None
_lock = threading.Lock()  # servers are started side by side


def watch(pid: int, folder: Path) -> None:
    """Let the reaper kill the process and delete the folder if this process dies."""
    _send_line(f"+{pid} {folder}\n")


def unwatch(pid: int) -> None:
    _send_line(f"-{pid}\n")


def _send_line(line: str) -> None:
    global _pipe
    with _lock:
        if _pipe is None:
            reaper = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True)
            reaper.returncode = 0  # it outlives us on purpose: no warning about a running child
            _pipe = reaper.stdin
        assert _pipe is not None
        try:
            _pipe.write(line.encode())
            _pipe.flush()
        except BrokenPipeError:  # the reaper was killed; the servers' own teardown still works
            pass


def kill_tree(root: psutil.Process) -> None:
    """SIGKILL for a server and its descendants, the parent first: PostgreSQL's would begin a recovery."""
    try:
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(tree, timeout=10)


def main() -> None:
    watched: dict[int, tuple[psutil.Process, str]] = {}
    for line in sys.stdin:
        pid, _, folder = line[1:].rstrip("\n").partition(" ")
        if line.startswith("-"):
            watched.pop(int(pid), None)
        elif psutil.pid_exists(int(pid)):
            watched[int(pid)] = (
                psutil.Process(int(pid)),
                folder,
            )  # knows the start time: a reused PID is not ours
    for process, folder in watched.values():
        kill_tree(process)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
