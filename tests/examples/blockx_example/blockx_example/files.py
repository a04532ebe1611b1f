"""The result handler ``FileHandler {"file"}``: the outputs as JSON lines in a file of a folder, all or nothing."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockx_worker import extensions as bx


class FileWriter:
    """Writes files that appear complete or not at all."""

    type = "FileHandler"
    keeps_outputs = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, config: bytes, blocks: tuple[int, int] | None) -> None:
        """Refuse a bad configuration before any call runs."""
        self._target(config)

    async def write(self, context: bx.WriterContext, config: bytes, outputs: bx.OutputLines) -> bytes:
        """Write everything in a thread; what is returned stands in the task's result."""
        await context.threads.run(self._write, context, self._target(config), outputs)
        return b'{"outputs":%d}' % outputs.count

    def _target(self, config: bytes) -> Path:
        try:
            name = bx.read_object("resultHandler", config, ("file",)).text("file")
        except bx.FieldError as error:
            raise bx.StepFailed(bx.TaskFailureCode.PLUGIN_FAILED, str(error)) from None
        return self._folder / Path(name).name

    def _write(self, context: bx.WriterContext, target: Path, outputs: bx.OutputLines) -> None:
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as draft:
                draft.writelines(line + b"\n" for line in outputs.lines())
            if not context.gate.start(final=True):
                raise bx.WriteStopped  # the task has ended: nothing may appear any more
            Path(draft.name).replace(target)
        finally:
            Path(draft.name).unlink(missing_ok=True)


def make(section: Mapping[str, Any], services: bx.ExtensionServices) -> FileWriter:
    """Make the writer; ``folder`` in the section is where the files go."""
    return FileWriter(Path(section.get("folder", ".")))
