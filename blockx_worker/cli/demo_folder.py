"""The folder of the demo: a synthetic chain, a file of example functions, and a note that says what it is."""

from __future__ import annotations

from pathlib import Path

import attrs

from blockx_worker.cli.demo_chain import ChainSize, write_chain
from blockx_worker.cli.errors import CommandFailed

__all__ = ["DemoFolder", "prepare"]

NOTE = """\
This folder was made by `blockx demo`. All its data is SYNTHETIC: made from a seed, nothing in it ever happened.

blocks/              block tables as the worker reads them, one JSON object a line
functions/           functions that tasks can call; edit them, a running worker notices
transfers.db         SQLite: the rows that the demo's task wrote
worker.log           what the demo's worker logged

Running the demo again writes the same rows again. Delete the folder when you are done.
"""

FUNCTIONS = '''\
"""Functions of the demo. Every public `def` in this folder can be called by tasks, as FILE.NAME.

Edit this file while a worker runs: the next task uses the new version.
"""

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


def transfer(log):
    """One row for an ERC-20 Transfer log; None, which means no row, for every other log."""
    topics = log["topics"]
    if len(topics) != 3 or topics[0] != TRANSFER:
        return None
    return {
        "block_number": log["block_number"],
        "log_index": log["log_index"],
        "token": log["address"],
        "sender": _address(topics[1]),
        "receiver": _address(topics[2]),
        "amount": int(log["data"], 16),  # up to 2**256 - 1, exactly
    }


def as_units(amount, decimals):
    """The amount in whole units of its token: as_units(1500, 3) is "1.500"."""
    whole, rest = divmod(amount, 10**decimals)
    return f"{whole}.{rest:0{decimals}d}"


def _address(word):
    """The last 20 bytes of a 32-byte word."""
    return "0x" + word[-40:]
'''


@attrs.frozen(kw_only=True)
class DemoFolder:
    """Where the parts of a prepared folder lie; all paths are absolute."""

    root: Path
    size: ChainSize

    @property
    def blocks(self) -> Path:
        """The folder store."""
        return self.root / "blocks"

    @property
    def functions(self) -> Path:
        """The function folder."""
        return self.root / "functions"

    @property
    def edited(self) -> bool:
        """Whether the example functions are no longer as they were made."""
        return (self.functions / "transfers.py").read_text(encoding="utf-8") != FUNCTIONS

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.root / "transfers.db"

    @property
    def log(self) -> Path:
        """The worker's log."""
        return self.root / "worker.log"

    @property
    def ready_file(self) -> Path:
        """The worker's ready file."""
        return self.root / "worker-ready.json"


def prepare(root: Path) -> DemoFolder:
    """Make the folder or refresh it; functions that were edited stay. Refuses a folder that holds something else."""
    note = root / "README.txt"
    try:
        if root.exists() and not note.exists() and any(root.iterdir()):
            raise CommandFailed(f"{root} holds something else; name another folder with --dir")
        for part in ("blocks", "functions"):
            (root / part).mkdir(parents=True, exist_ok=True)
        note.write_text(NOTE, encoding="utf-8")
        functions = root / "functions" / "transfers.py"
        if not functions.exists():
            functions.write_text(FUNCTIONS, encoding="utf-8")
        return DemoFolder(root=root.absolute(), size=write_chain(root / "blocks"))
    except OSError as error:
        raise CommandFailed(f"cannot make the demo in {root}: {error.strerror}") from None
