"""From units of code to the view of one epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockx_worker.functions.unit_findings import unit_warnings
from blockx_worker.functions.units import CodeUnit
from blockx_worker.functions.view import FunctionProblem, LoadedView

__all__ = ["assemble"]


def assemble(
    epoch: int,
    units: Sequence[CodeUnit],
    *,
    problems: Iterable[FunctionProblem] = (),
    audited: frozenset[str] | None = None,
) -> LoadedView:
    """The view of all functions of these units."""
    return LoadedView(
        epoch,
        [function for unit in units for function in unit.functions],
        [unit.code for unit in units],
        problems=(*problems, *unit_warnings(units)),
        audited=audited,
    )
