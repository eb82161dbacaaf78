"""How a store is opened, and what a wrong address is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import effectonce as eo


@pytest.mark.parametrize(
    ("url", "error", "hint"),
    [
        ("redsi://localhost", eo.UnknownScheme, "redis://"),
        ("localhost:6379", eo.UnknownScheme, "the schemes are"),
        ("", eo.UnknownScheme, "the schemes are"),
        ("postgresql+odbc://localhost/shop", eo.UnknownScheme, "leave it out: postgresql://"),
        ("mysql://h1,h2/shop", eo.InvalidOption, "takes one host"),
        ("rediss://localhost?tls=no", eo.InvalidOption, "leave one of them out"),
        ("memory://host/path", eo.InvalidOption, "no host or path"),
        ("memory://?speed=11", eo.InvalidOption, "no option speed"),
        ("sqlite:///x.db?colour=blue", eo.InvalidOption, "its options are"),
        ("sqlite://", eo.InvalidOption, "memory://"),
        ("redis://localhost:port/0", eo.InvalidOption, "cannot be parsed"),
        ("redis://localhost/0?timeout=soon", eo.InvalidOption, "timeout"),
        ("postgresql://localhost/db?nope=1", eo.InvalidOption, "its options are"),
        ("mysql://localhost/db?nope=1", eo.InvalidOption, "its options are"),
        ("dynamodb://table?nope=1", eo.InvalidOption, "its options are"),
    ],
)
def test_a_wrong_url_is_refused_at_once_with_the_remedy(url: str, error: type[Exception], hint: str) -> None:
    with pytest.raises(error, match=hint):
        eo.connect(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0",
        "postgresql://u:c4n4ry@127.0.0.1:1/db",
        "mysql://u:c4n4ry@127.0.0.1:1/db",
        "redis+cluster://:c4n4ry@127.0.0.1:1",
    ],
)
def test_connecting_opens_nothing_and_an_unreachable_server_is_unavailable(url: str) -> None:
    """F36, F66: fail closed, and say where without the password."""
    with eo.connect(url) as store:
        charge = eo.once(store, scope="s", key="k")(lambda k: pytest.fail("ran without its store"))
        with pytest.raises(eo.StoreUnavailable) as caught:
            charge("k")
        assert "127.0.0.1" in str(caught.value)
        assert "c4n4ry" not in f"{store!r} {caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("redis://localhost", "redis", "redis"),
        ("postgresql://localhost/db", "psycopg", "postgres"),
        ("mysql://localhost/db", "pymysql", "mysql"),
        ("dynamodb://table?region=eu-west-1", "boto3", "dynamodb"),
    ],
)
def test_a_missing_driver_names_the_extra(url: str, driver: str, extra: str) -> None:
    program = textwrap.dedent(
        f"""
        from importlib.machinery import PathFinder
        absent = ({driver!r}, "hiredis", "botocore", "aiobotocore", "aiomysql")
        find = PathFinder.find_spec
        PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in absent else find(name, *rest)
        import effectonce as eo
        try:
            eo.connect({url!r})
        except eo.MissingDriver as error:
            print(error.code, error)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "missing-driver" in done.stdout, done.stderr
    assert f"pip install 'effectonce[{extra}]'" in done.stdout


def test_without_a_url_the_environment_names_the_store_on_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = eo.connect()
    charge = eo.once(store, scope="s", key="k")(lambda k: 7)
    with pytest.raises(eo.ConfigurationError, match="EFFECTONCE_STORE"):
        charge("k")
    monkeypatch.setenv("EFFECTONCE_STORE", f"sqlite:///{tmp_path}/shop.db")
    assert charge("k") == 7
    assert (tmp_path / "shop.db").exists()
    store.close()


def test_a_closed_store_opens_again_when_used(tmp_path: Path) -> None:
    with eo.connect(f"sqlite:///{tmp_path}/shop.db") as store:
        charge = eo.once(store, scope="s", key="k")(lambda k: 7)
        charge("k")
        store.close()
        assert charge.call("k").replayed


def test_every_error_has_a_stable_code_of_its_own() -> None:
    import effectonce.errors as errors

    kinds = [each for name in errors.ERROR_NAMES if isinstance(each := getattr(errors, name), type)]
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    drawn = errors.__doc__ or ""
    assert [kind.__name__ for kind in kinds if kind.__name__ not in drawn] == []
    for kind in kinds:
        if kind.__name__ not in ("EffectOnceError", "Retryable"):
            assert kind.code in drawn


def test_the_package_loads_its_names_when_the_first_is_asked_for() -> None:
    """So that `effectonce --help` need not; and callers cannot tell, not even sixteen threads at once."""
    code = """
import sys, threading
import effectonce as eo
assert "effectonce.guard" not in sys.modules
assert set(dir(eo)) == {*eo.__all__, "__version__"}
assert eo.errors.InDoubt.code == "in-doubt"
assert not hasattr(eo, "nothing_of_ours") and not hasattr(eo, "__wrapped__")
failed, start = [], threading.Barrier(16)

def ask(number):
    start.wait()
    try:
        for name in eo.__all__[number:] + eo.__all__[:number]:
            getattr(eo, name)
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
names = {}
exec("from effectonce import *", names)
assert set(dir(eo)) == {*eo.__all__, "__version__"}, "also when its modules are loaded"
assert not failed and names["once"] is eo.once and names["keys"] is eo.keys
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
