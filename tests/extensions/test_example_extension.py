"""The example of the how-tos, installed: each of its parts is found and does what it says."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import trio

from blockx_worker.config import ConfigError, load_settings
from blockx_worker.extensions import Extensions, ExtensionServices, StepFailed, WriteStopped, load_extensions
from blockx_worker.io.make import make_io
from blockx_worker.surroundings import WorkerThreads
from tests.builders.helpers import build
from tests.extensions.conftest import EXAMPLE
from tests.io.io_fakes import ask, problem
from tests.plugins.helpers import Gate, Outputs, context

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = ("back-end.md", "builder.md", "writer.md")
CONFIG = """
[extensions.example]
prices = "{folder}/prices.csv"
folder = "{folder}"
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "prices.csv").write_text("symbol,day,usd\nETH,2024-05-01,2969.78\n")
    (tmp_path / "worker.toml").write_text(CONFIG.format(folder=tmp_path))
    return load_settings(None, tmp_path / "worker.toml", {}, {}).settings


@pytest.fixture
def extensions(installed, settings) -> Extensions:
    return load_extensions(settings, ExtensionServices(threads=WorkerThreads()))


async def test_the_back_end_answers_calls_of_a_task(nursery, settings, extensions):
    io = make_io(settings, WorkerThreads(), {}, extensions.backends)
    await nursery.start(io.run)
    task = io.open_task("t")

    async def usd(**fields: str):
        request = ask(backend="prices", op="usd", raw=json.dumps(fields).encode())
        return await task.request(request)

    for _ in range(2):
        assert (await usd(symbol="ETH", day="2024-05-01")).result == b'"2969.78"'
    assert task.requests == 1
    missing = problem(await usd(symbol="ETH", day="2024-05-02"))
    assert (missing.kind, missing.message) == ("PRICE_NOT_FOUND", "no price of ETH on 2024-05-02")
    assert problem(await usd(symbol="ETH")).message.startswith(
        "prices.day: is missing: expected a day such as"
    )
    bad = problem(await task.request(ask(backend="prices", op="eur")))
    assert bad.kind == "IO_BAD_REQUEST"


async def test_the_builder_makes_calls_in_batches(extensions):
    (builder,) = extensions.builders
    config = {"functionId": "m.f", "from": 5, "to": 11}
    result = await build(builder, config, batch_max_rows=3)
    assert result.stream is not None
    batches = [batch async for batch in result.stream.batches()]
    assert [(b.first_index, list(map(bytes, b.args))) for b in batches] == [
        (0, [b"[5]", b"[6]", b"[7]"]),
        (3, [b"[8]", b"[9]", b"[10]"]),
        (6, [b"[11]"]),
    ]
    with pytest.raises(StepFailed, match=r"functionCallConfig\.to: expected an integer ≥ 5, got 4"):
        await build(builder, {**config, "to": 4})


async def test_the_writer_writes_all_or_nothing(extensions, tmp_path):
    (writer,) = extensions.writers
    config = b'{"file": "out.jsonl"}'
    writer.check(config, None)
    before = set(tmp_path.iterdir())
    with pytest.raises(WriteStopped):
        await writer.write(context(Gate(refuse_at=0)), config, Outputs([1, None]))
    assert set(tmp_path.iterdir()) == before
    assert json.loads(await writer.write(context(), config, Outputs([1, None]))) == {"outputs": 2}
    assert (tmp_path / "out.jsonl").read_bytes() == b"1\nnull\n"
    with pytest.raises(StepFailed, match=r"resultHandler\.file: is missing"):
        writer.check(b"{}", None)


def test_a_section_that_the_example_cannot_use_is_one_line(installed, tmp_path):
    (tmp_path / "worker.toml").write_text("[extensions.example]\n")
    settings = load_settings(None, tmp_path / "worker.toml", {}, {}).settings
    with pytest.raises(ConfigError) as caught:
        load_extensions(settings, ExtensionServices(threads=WorkerThreads()))
    assert caught.value.problems == (
        (
            "extension example of blockx-example 1.0.0 (blockx.io_backends: blockx_example.prices:make): "
            '[extensions.example]: prices: expected the path of a CSV file such as "/data/prices.csv"'
        ),
    )


def test_nothing_of_it_is_imported_without_being_named(installed):
    settings = load_settings(None, None, {}, {}).settings
    assert load_extensions(settings, ExtensionServices(threads=WorkerThreads())) == Extensions()


async def test_the_worker_lends_threads_that_are_joined(extensions, settings, nursery):
    """A cancelled request to the example leaves nothing behind."""
    (backend,) = extensions.backends
    with trio.CancelScope() as scope:
        scope.cancel()
        await backend.request("usd", b'{"symbol":"ETH","day":"2024-05-01"}')
    assert (await backend.request("usd", b'{"symbol":"ETH","day":"2024-05-01"}')).error is None


# --- the how-tos ------------------------------------------------------------------------------------------------


def blocks(page: str, language: str) -> list[str]:
    """The fenced code of a page in one language."""
    parts = (HOWTO / page).read_text(encoding="utf-8").split("```")[1::2]
    return [part.partition("\n")[2].strip("\n") for part in parts if part.partition("\n")[0] == language]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_the_how_tos_is_that_of_the_example(page):
    sources = [file.read_text(encoding="utf-8") for file in EXAMPLE.rglob("*.py")]
    found = blocks(page, "python")
    assert found
    for block in found:
        assert any(block in source for source in sources), block


@pytest.mark.parametrize("page", PAGES)
def test_the_toml_of_the_how_tos_is_valid_and_names_the_entry_points_of_the_example(page):
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for block in blocks(page, "toml"):
        document = tomllib.loads(block)
        for group, entries in document.get("project", {}).get("entry-points", {}).items():
            assert project["entry-points"][group] == entries
