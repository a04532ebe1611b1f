"""Fixtures for all tests."""

import os
from pathlib import Path

import pytest

from tests.support.postgres import postgres, postgres_server

__all__ = ["ethereum_blocks", "postgres", "postgres_server"]

BLOCKS = Path(__file__).parents[2] / "shared" / "data" / "ethereum-17173049-17173050"


@pytest.fixture(scope="session")
def ethereum_blocks() -> Path:
    """Folder of two real mainnet blocks: blocks, transactions, logs and the token transfers that follow from them."""
    if not (BLOCKS / "logs.jsonl").is_file():
        reason = f"the data of two mainnet blocks is not at {BLOCKS}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return BLOCKS
