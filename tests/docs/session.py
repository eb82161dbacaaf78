"""Runs one page: ``python -m tests.docs.session PAGE`` in an empty folder, the servers' addresses as JSON on stdin."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import linecache
import os
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import yaml

from .pages import Block, blocks, commands, missing_line

SQL = {"SQLite": "sqlite:///shop.db", "PostgreSQL": "postgresql://localhost/shop"}


class Session:
    def __init__(self, page: Path, addresses: dict[str, str]) -> None:
        self.page = page
        self.addresses = addresses
        self.module = types.ModuleType("__main__")
        self.running: list[subprocess.Popen[str]] = []
        self.loop = asyncio.new_event_loop()
        sys.modules["__main__"] = self.module
        sys.path.insert(0, "")

    def here(self, text: str) -> str:
        for written, real in self.addresses.items():
            text = text.replace(written, real)
        return text

    def run(self, block: Block) -> None:
        code = self.here(block.code)
        if block.language in ("json", "yaml", "toml"):
            {"json": json.loads, "yaml": lambda text: list(yaml.safe_load_all(text)), "toml": tomllib.loads}[
                block.language
            ](code)
        if block.title is not None and block.language != "sql":
            path = Path(block.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        elif block.language == "python":
            self.python(block, code)
        elif block.language == "console":
            self.console(block)
        elif block.language == "sql":
            self.sql(block, code)

    def python(self, block: Block, code: str) -> None:
        name = f"{self.page}:{block.line}"
        source = "\n" * (block.line - 1) + code
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compiled = compile(source, name, "exec", flags, dont_inherit=True)
        if compiled.co_flags & inspect.CO_COROUTINE:
            self.loop.run_until_complete(types.FunctionType(compiled, self.module.__dict__)())
        else:
            exec(compiled, self.module.__dict__)

    def console(self, block: Block) -> None:
        for command, wanted in commands(block):
            if command.startswith(("pip install ", "make ", "git clone ", ". .venv/")):
                continue  # tests/docs/test_pages.py looks whether there is such an extra or target
            command = self.here(command)
            if command.startswith("export "):
                os.environ.update(word.split("=", 1) for word in shlex.split(command)[1:])
                continue
            if block.background:
                self.running.append(subprocess.Popen(["bash", "-c", command], text=True))
                continue
            merged = subprocess.STDOUT
            done = subprocess.run(
                ["bash", "-c", command], text=True, stdout=subprocess.PIPE, stderr=merged, timeout=240
            )
            where = f"{self.page}:{block.line}: $ {command}"
            if done.returncode != block.exits:
                sys.exit(f"{where}\nexited {done.returncode} instead of {block.exits}:\n{done.stdout}")
            if (line := missing_line(done.stdout, wanted)) is not None:
                sys.exit(f"{where}\ndid not print {line!r}, but:\n{done.stdout}")

    def sql(self, block: Block, code: str) -> None:
        url = self.here(SQL[block.title or "SQLite"])
        if url.startswith("sqlite"):
            import sqlite3

            with sqlite3.connect("shop.db") as conn:
                conn.executescript(code)
        else:
            import psycopg

            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute(code.encode())

    def close(self) -> None:
        for process in self.running:
            if process.poll() is not None:
                sys.exit(f"{self.page}: {process.args!r} ended by itself, with {process.returncode}")
            process.terminate()
        for process in self.running:
            process.wait(20)
        self.loop.close()


def main() -> None:
    page = Path(sys.argv[1])
    session = Session(page, json.load(sys.stdin))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        for block in blocks(page.read_text()):
            session.run(block)
    finally:
        session.close()


if __name__ == "__main__":
    main()
