"""A small synthetic chain for the demo: deterministic from a seed, and labelled as synthetic in every row.

Nothing in it ever happened. Shapes are those of an Ethereum export: `blocks.jsonl` and `logs.jsonl`, one JSON object a
line, 256-bit values in hex. Three kinds of logs make the example function do some work: ERC-20 transfers (three topics,
the amount as data), NFT transfers (four topics, no data) and approvals.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import attrs
import msgspec

__all__ = ["ChainSize", "DemoChain", "is_erc20_transfer", "write_chain"]

SEED = 20_240_229
BLOCK_COUNT = 200
FIRST_TIMESTAMP = 1_600_000_000
SECONDS_PER_BLOCK = 12
MAX_LOGS_PER_BLOCK = 24
ADDRESS_COUNT = 40
TOKEN_COUNT = 5

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
APPROVAL = "0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925"
MAX_UINT256 = 2**256 - 1

Row = dict[str, object]


@attrs.frozen(kw_only=True)
class ChainSize:
    """How much there is: blocks, logs, and ERC-20 transfers among the logs."""

    blocks: int
    logs: int
    transfers: int


@attrs.define
class DemoChain:
    """Makes the blocks one after the other; the same seed gives the same chain on every machine."""

    seed: int = SEED
    _random: random.Random = attrs.field(init=False)
    _addresses: list[str] = attrs.field(init=False)
    _tokens: list[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Choose who takes part."""
        self._random = random.Random(self.seed)  # noqa: S311 - made-up data, and it must be repeatable
        self._addresses = [self._hex(20) for _ in range(ADDRESS_COUNT)]
        self._tokens = [self._hex(20) for _ in range(TOKEN_COUNT)]

    def blocks(self, count: int = BLOCK_COUNT) -> Iterator[tuple[Row, list[Row]]]:
        """Blocks 1 to ``count``, each with its logs."""
        parent = "0x" + "00" * 32
        for number in range(1, count + 1):
            block = self._block(number, parent)
            parent = str(block["hash"])
            logs = [self._log(block, index) for index in range(self._random.randint(0, MAX_LOGS_PER_BLOCK))]
            yield block, logs

    def _block(self, number: int, parent: str) -> Row:
        return {
            "synthetic": True,
            "number": number,
            "hash": self._hex(32),
            "parent_hash": parent,
            "timestamp": FIRST_TIMESTAMP + number * SECONDS_PER_BLOCK,
        }

    def _log(self, block: Row, index: int) -> Row:
        topics, data = self._random.choices((self._transfer, self._nft_transfer, self._approval), (8, 1, 3))[
            0
        ]()
        return {
            "synthetic": True,
            "block_number": block["number"],
            "block_hash": block["hash"],
            "log_index": index,
            "transaction_hash": self._hex(32),
            "address": self._random.choice(self._tokens),
            "topics": topics,
            "data": data,
        }

    def _transfer(self) -> tuple[list[str], str]:
        return [TRANSFER, self._party(), self._party()], _word(self._amount())

    def _nft_transfer(self) -> tuple[list[str], str]:
        return [TRANSFER, self._party(), self._party(), _word(self._random.randrange(10_000))], "0x"

    def _approval(self) -> tuple[list[str], str]:
        return [APPROVAL, self._party(), self._party()], _word(MAX_UINT256)

    def _amount(self) -> int:
        """Mostly everyday amounts, now and then one that only fits 256 bits."""
        return MAX_UINT256 if self._random.random() < 0.02 else self._random.randrange(1, 10**21)

    def _party(self) -> str:
        return _word(int(self._random.choice(self._addresses), 16))

    def _hex(self, size: int) -> str:
        return "0x" + self._random.randbytes(size).hex()


def write_chain(folder: Path) -> ChainSize:
    """Write ``blocks.jsonl`` and ``logs.jsonl`` into an existing folder, replacing what is there."""
    blocks, logs = _rows(DemoChain())
    for name, rows in (("blocks", blocks), ("logs", logs)):
        (folder / f"{name}.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    return ChainSize(blocks=len(blocks), logs=len(logs), transfers=sum(map(is_erc20_transfer, logs)))


def is_erc20_transfer(log: Row) -> bool:
    """What the example function looks for, said independently of it: the demo compares the two counts."""
    topics = log["topics"]
    return isinstance(topics, list) and len(topics) == 3 and topics[0] == TRANSFER


def _rows(chain: DemoChain) -> tuple[list[Row], list[Row]]:
    blocks: list[Row] = []
    logs: list[Row] = []
    for block, block_logs in chain.blocks():
        blocks.append(block)
        logs.extend(block_logs)
    return blocks, logs


def _word(value: int) -> str:
    return f"0x{value:064x}"
