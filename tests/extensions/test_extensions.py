"""Which extensions are used, and the one line that each broken one gets."""

from __future__ import annotations

import sys
import types
from importlib.metadata import Distribution, EntryPoint
from typing import Any

import pytest

from blockx_worker.config import ConfigError
from blockx_worker.config.settings import Settings
from blockx_worker.extensions import Extensions, ExtensionServices, load_extensions
from tests.io.io_fakes import FakeBackend

BACKENDS, BUILDERS, WRITERS = "blockx.io_backends", "blockx.builders", "blockx.writers"
SERVICES = ExtensionServices(threads=None)  # type: ignore[arg-type]


class Builder:
    def __init__(self, type_: Any = "MineCallConfig") -> None:
        self.type = type_

    async def build(self, context, config): ...


class Writer:
    type = "MineHandler"
    keeps_outputs = False

    def check(self, config, blocks): ...

    async def write(self, context, config, outputs): ...


class FakeDistribution(Distribution):
    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename):
        return f"Name: {self._name}\nVersion: 1.0\n" if filename == "METADATA" else None

    def locate_file(self, path):
        raise NotImplementedError


class Site:
    """Installed extensions: factories under names, in groups, of distributions."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        self._entries: list[EntryPoint] = []

    def add(self, name: str, group: str, factory: Any, dist: str = "mine") -> None:
        attribute = f"make{len(self._entries)}"
        setattr(self._module, attribute, factory)
        entry = EntryPoint(name, f"{self._module.__name__}:{attribute}", group)
        vars(entry)["dist"] = FakeDistribution(dist)
        self._entries.append(entry)

    def load(self, *names: str, **sections: dict[str, Any]) -> Extensions:
        settings = Settings(extensions=sections, extensions_enabled=list(names))
        return load_extensions(
            settings, SERVICES, lambda group: [e for e in self._entries if e.group == group]
        )

    def problems(self, *names: str, **sections: dict[str, Any]) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            self.load(*names, **sections)
        assert all("\n" not in line for line in caught.value.problems)
        return list(caught.value.problems)


@pytest.fixture
def site(monkeypatch) -> Site:
    module = types.ModuleType("site_of_tests")
    monkeypatch.setitem(sys.modules, "site_of_tests", module)
    return Site(module)


def test_what_is_installed_and_not_named_is_not_even_imported(site):
    site.add("mine", BACKENDS, lambda section, services: pytest.fail("made"))
    assert site.load() == Extensions()
    site.add("other", BUILDERS, lambda section, services: Builder())
    assert [b.type for b in site.load("other").builders] == ["MineCallConfig"]


def test_an_extension_is_used_by_its_section_even_an_empty_one_or_by_its_name(site):
    site.add("mine", BACKENDS, lambda section, services: FakeBackend("mine"))
    for extensions in (site.load("mine"), site.load(mine={}), site.load("mine", mine={})):
        assert [b.name for b in extensions.backends] == ["mine"]


def test_one_name_may_offer_a_part_of_each_kind_with_one_section(site):
    seen = []

    def make(part: Any) -> Any:
        def factory(section, services):
            seen.append((dict(section), services))
            return part

        return factory

    site.add("mine", BACKENDS, make(FakeBackend("mine")))
    site.add("mine", BUILDERS, make(Builder()))
    site.add("mine", WRITERS, make(Writer()))
    extensions = site.load(mine={"url": "x", "limits": {"a": 1}})
    assert seen == [({"url": "x", "limits": {"a": 1}}, SERVICES)] * 3
    assert (len(extensions.backends), len(extensions.builders), len(extensions.writers)) == (1, 1, 1)


def test_a_factory_cannot_change_the_settings(site):
    def factory(section, services):
        section["x"] = 1

    site.add("mine", BACKENDS, factory)
    assert "'mappingproxy' object does not support item assignment" in site.problems("mine")[0]


def test_a_name_that_is_not_installed_names_those_that_are(site):
    assert site.problems("mine") == [
        "extensions.mine: no installed distribution offers an extension of this name; there are none"
    ]
    site.add("prices", BACKENDS, None)
    site.add("counts", BUILDERS, None)
    assert site.problems("mine")[0].endswith("there are counts, prices")


def raising(error: BaseException) -> Any:
    def factory(section, services):
        raise error

    return factory


@pytest.mark.parametrize(
    ("group", "factory", "what"),
    [
        (BACKENDS, raising(ValueError("url: expected\n a URL")), "[extensions.mine]: url: expected a URL"),
        (BACKENDS, raising(KeyError("url")), "cannot be made: KeyError: 'url'"),
        (BACKENDS, raising(OSError("http://u:SECRET@h")), "cannot be made: OSError: http://u:***@h"),
        (BACKENDS, lambda: None, "cannot be made: TypeError: "),
        (BACKENDS, 5, "cannot be made: TypeError: 'int' object is not callable"),
        (BACKENDS, lambda *_: "x", "made a str, which is no back end: it has no name"),
        (BACKENDS, lambda *_: Builder(), "made a Builder, which is no back end: it has no name"),
        (BUILDERS, lambda *_: FakeBackend(), "made a FakeBackend, which is no call builder: it has no type"),
        (WRITERS, lambda *_: Builder(), "made a Builder, which is no writer: it has no keeps_outputs"),
        (BUILDERS, lambda *_: Builder(5), "its type is 5; expected a text"),
        (BUILDERS, lambda *_: Builder(""), "its type is ''; expected a text"),
        (BACKENDS, lambda *_: FakeBackend("rpc"), "its name rpc is that of a back end of the worker's own"),
        (BACKENDS, lambda *_: FakeBackend("blockdb"), "its name blockdb is that of a back end of the"),
        (
            BUILDERS,
            lambda *_: Builder("BlockTableCallConfig"),
            "its type BlockTableCallConfig is that of a call builder of the worker's own",
        ),
    ],
)
def test_a_broken_extension_is_one_line_with_its_distribution_and_entry_point(site, group, factory, what):
    site.add("mine", group, factory)
    (line,) = site.problems("mine")
    where = f"extension mine of mine 1.0 ({group}: site_of_tests:make0): "
    assert line.startswith(where + what)
    assert len(line) < 500


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("no_such_module:make", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("site_of_tests:nothing", "AttributeError: "),
    ],
)
def test_an_extension_that_cannot_be_imported_is_one_line(site, value, error):
    site.add("mine", WRITERS, None)
    entry = site._entries[0]
    vars(entry)["value"] = value
    (line,) = site.problems("mine")
    assert line.startswith(f"extension mine of mine 1.0 ({WRITERS}: {value}): cannot be imported: {error}")


def test_all_broken_extensions_are_told_at_once(site):
    for name in "abc":
        site.add(name, BACKENDS, raising(RuntimeError(name)))
    assert len(site.problems("a", "b", "c", "d")) == 4


def test_two_extensions_with_one_type_are_told_apart(site):
    site.add("a", BUILDERS, lambda *_: Builder(), dist="one")
    site.add("b", BUILDERS, lambda *_: Builder(), dist="two")
    (line,) = site.problems("a", "b")
    assert line.startswith("extension b of two 1.0 ")
    assert "its type MineCallConfig is also that of extension a of one 1.0 " in line
    assert len(site.load("a").builders) == 1


def test_two_distributions_that_offer_one_name_are_named(site):
    site.add("mine", BUILDERS, lambda *_: Builder(), dist="two")
    site.add("mine", BUILDERS, lambda *_: Builder(), dist="one")
    assert site.problems("mine") == [
        (
            "extensions.mine: more than one distribution offers it in blockx.builders: one 1.0 and two 1.0; "
            "uninstall all but one"
        )
    ]


def test_an_interrupt_is_not_taken_for_a_broken_extension(site):
    site.add("mine", BACKENDS, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        site.load("mine")
