"""The reference says what the code says."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import effectonce
from effectonce import broker, store

from .pages import DOCS, ROOT
from .reference import PAGES, REFERENCE, option_defaults, undocumented

BACKENDS = [(kind, scheme) for kind, module in (("stores", store), ("brokers", broker)) for scheme in module.SCHEMES]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "write it again: python -m tests.docs.reference"


def test_every_public_name_is_there() -> None:
    assert not undocumented()


@pytest.mark.parametrize(("kind", "scheme"), BACKENDS)
def test_every_option_of_a_url_is_explained(kind: str, scheme: str) -> None:
    module, name = {"stores": store.SCHEMES, "brokers": broker.SCHEMES}[kind][scheme]
    backend = getattr(import_module(f"effectonce.{module}"), name)
    for option in option_defaults(scheme, backend):
        assert re.search(rf"(``|[?&]){option}(``|=)", backend.__doc__), f"{name}: {option}"


def test_every_variable_of_the_environment_is_there() -> None:
    page = (REFERENCE / "configuration.md").read_text()
    sources = [path.read_text() for path in Path(ROOT, "src").rglob("*.py")]
    named = {each for text in sources for each in re.findall(r"EFFECTONCE_[A-Z_]*[A-Z]", text)}
    assert {each for each in named if f"`{each}`" not in page} == set()


def test_every_metric_is_there() -> None:
    page = (DOCS / "operate" / "telemetry.md").read_text()
    sources = [path.read_text() for path in Path(ROOT, "src", "effectonce", "telemetry").glob("*.py")]
    named = {each for text in sources for each in re.findall(r'"(effectonce_[a-z_]+)"', text)}
    assert {each for each in named if not re.search(rf"`{each}(_total)?`", page)} == set()


def test_the_layout_names_every_module() -> None:
    page = (DOCS / "internals" / "layout.md").read_text().split("**One algorithm")[0]
    modules = {module.name for module in iter_modules(effectonce.__path__)} - {"__main__"}
    assert {each for each in modules if not re.search(rf"\b{each}\b", page)} == set()


@pytest.mark.parametrize("page", sorted((DOCS / "internals").glob("*.md")), ids=lambda page: str(page.stem))
def test_the_files_that_a_page_about_the_code_names_are_there(page: Path) -> None:
    """Paths are below the package, or below the repository; a bare name is a file somewhere in the package."""
    package = Path(effectonce.__file__).parent
    named = set(re.findall(r"`((?:[a-z_*]+/)+[a-z_*]*(?:\.py|\.sql|\.lua)?|[a-z_]+\.py)`", page.read_text()))
    assert {path for path in named if not any(package.rglob(path)) and not any(ROOT.glob(path))} == set()
