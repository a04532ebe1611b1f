"""From modules to the view of one epoch: each module is one unit of code, with one digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from blockx_worker.functions.inspect import Module, module_name
from blockx_worker.functions.view import FunctionDescription, FunctionProblem, LoadedView
from blockx_worker.ports import FunctionCode

__all__ = ["assemble"]


def assemble(
    epoch: int,
    modules: Sequence[Module],
    *,
    problems: Iterable[FunctionProblem] = (),
    audited: frozenset[str] | None = None,
) -> LoadedView:
    """The view of all functions of these modules."""
    return LoadedView(
        epoch,
        _describe(modules),
        [FunctionCode(m.digest, {m.path: m.source}, m.path) for m in modules],
        problems=(*problems, *(problem for m in modules for problem in m.problems)),
        audited=audited,
    )


def _describe(modules: Iterable[Module]) -> Iterator[FunctionDescription]:
    for module in modules:
        for definition in module.definitions:
            yield FunctionDescription(
                function_id=f"{module_name(module.path)}.{definition.name}",
                digest=module.digest,
                entry_selector=definition.name,
                signature=definition.signature,
                doc=definition.doc,
                no_cache=definition.no_cache,
                path=module.path,
                line=definition.line,
            )
