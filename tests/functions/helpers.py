"""A function folder to write into, and a provider that follows it."""

from pathlib import Path

from blockx_worker.functions import AllowListFile, DirectoryFunctionProvider, LoadedView
from tests.plugins.helpers import TrioThreads


class Folder:
    """A function folder and a provider over it; `look` looks until nothing is unsettled."""

    def __init__(self, path: Path, audited: AllowListFile | None = None) -> None:
        self.path = path
        self.provider = DirectoryFunctionProvider(path, TrioThreads(), audited=audited)

    def write(self, name: str, source: str | bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return path

    async def look(self) -> LoadedView:
        while await self.provider.refresh():
            pass
        return self.provider.current()
