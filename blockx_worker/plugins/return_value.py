"""`ReturnValueResultHandler {}`: the outputs stay with the worker, and clients read them."""

from __future__ import annotations

from blockx_worker.plugins.config import read_config
from blockx_worker.ports import OutputLines, WriterContext

__all__ = ["ReturnValuePlugin"]


class ReturnValuePlugin:
    """Keeps the outputs; there is nothing to write."""

    type = "ReturnValueResultHandler"
    keeps_outputs = True

    def check(self, config: bytes, blocks: tuple[int, int] | None) -> None:  # noqa: ARG002 - of the port
        """Accept an empty object only."""
        read_config(config, ())

    async def write(self, context: WriterContext, config: bytes, outputs: OutputLines) -> bytes:  # noqa: ARG002
        """Nothing to do."""
        return b"{}"
