"""Finds the writer of a result handler by its type."""

from __future__ import annotations

from collections.abc import Iterable

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.fields import shorten
from blockx_worker.ports import StepFailed, WriterPlugin

__all__ = ["PluginRegistry"]


class PluginRegistry:
    """The writers that this worker offers; ValueError if two have the same type."""

    def __init__(self, plugins: Iterable[WriterPlugin] = ()) -> None:
        self._plugins: dict[str, WriterPlugin] = {}
        for plugin in plugins:
            if plugin.type in self._plugins:
                raise ValueError(f"two plugins of type {plugin.type}")
            self._plugins[plugin.type] = plugin

    @property
    def types(self) -> list[str]:
        """All types, sorted."""
        return sorted(self._plugins)

    def get(self, type: str) -> WriterPlugin:  # noqa: A002 - the word of the configuration
        """The writer of that type; StepFailed(PLUGIN_NOT_FOUND) that names the types there are."""
        if type not in self._plugins:
            known = ", ".join(self.types) or "none"
            message = f'resultHandler.type: this worker has no writer "{shorten(type)}"; it has {known}'
            raise StepFailed(TaskFailureCode.PLUGIN_NOT_FOUND, message)
        return self._plugins[type]
