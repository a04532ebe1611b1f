"""Finds the builder of a call configuration by its type."""

from __future__ import annotations

from collections.abc import Iterable

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.fields import shorten
from blockx_worker.ports import CallBuilder, StepFailed

__all__ = ["BuilderRegistry"]


class BuilderRegistry:
    """The builders that this worker offers; ValueError if two have the same type."""

    def __init__(self, builders: Iterable[CallBuilder] = ()) -> None:
        self._builders: dict[str, CallBuilder] = {}
        for builder in builders:
            if builder.type in self._builders:
                raise ValueError(f"two builders of type {builder.type}")
            self._builders[builder.type] = builder

    @property
    def types(self) -> list[str]:
        """All types, sorted."""
        return sorted(self._builders)

    def get(self, type: str) -> CallBuilder:  # noqa: A002 - the word of the configuration
        """The builder of that type; StepFailed(BUILDER_NOT_FOUND) that names the types there are."""
        if type not in self._builders:
            known = ", ".join(self.types) or "none"
            message = f'functionCallConfig.type: this worker has no builder "{shorten(type)}"; it has {known}'
            raise StepFailed(TaskFailureCode.BUILDER_NOT_FOUND, message)
        return self._builders[type]
