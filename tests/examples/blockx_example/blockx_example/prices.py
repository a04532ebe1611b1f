"""The back end ``prices``: what a coin cost on a day, from a CSV file with the columns symbol, day and usd."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockx_worker import extensions as bx


class PricesBackend(bx.Ready):
    """Answers ``usd {"symbol", "day"}`` with the price as a text, so that no digit is lost."""

    name = "prices"

    def __init__(self, path: Path, threads: bx.Threads) -> None:
        self._path = path
        self._threads = threads

    async def request(self, op: str, request: bytes) -> bx.IoAnswer:
        """Answer one request; everything that a user can mend is an error in the answer."""
        if op != "usd":
            return _refuse("IO_BAD_REQUEST", "prices has no operation but usd")
        try:
            fields = bx.read_object("prices", request, ("symbol", "day"))
            key = (fields.text("symbol"), fields.text("day", "a day such as 2024-05-01"))
        except bx.FieldError as error:
            return _refuse("IO_BAD_REQUEST", str(error))
        prices = await self._threads.run(self._read)
        if key not in prices:
            return _refuse("PRICE_NOT_FOUND", f"no price of {key[0]} on {key[1]}")
        return bx.IoAnswer(result=json.dumps(prices[key]).encode())

    def cacheable(self, op: str) -> bool:
        """Equal requests of a task may share an answer."""
        return op == "usd"

    def _read(self) -> dict[tuple[str, str], str]:
        with self._path.open(newline="", encoding="utf-8") as file:
            return {(row["symbol"], row["day"]): row["usd"] for row in csv.DictReader(file)}


def make(section: Mapping[str, Any], services: bx.ExtensionServices) -> PricesBackend:
    """Make the back end; ``prices`` in the section is the path of the file."""
    if "prices" not in section:
        raise ValueError('prices: expected the path of a CSV file such as "/data/prices.csv"')
    return PricesBackend(Path(section["prices"]), services.threads)


def _refuse(kind: str, message: str) -> bx.IoAnswer:
    return bx.IoAnswer(error=bx.IoError(kind=kind, message=message))
