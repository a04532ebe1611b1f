"""The immutable mapping of one epoch: function ids to code.

A task takes one view and keeps it until its end, so nothing here changes after construction. The audit gate, where it
is set, is part of the view: a function whose digest is not on the allow list is listed but does not resolve.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import attrs

from blockx_worker.dispatch.source import ResolvedFunction
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.fields import shorten
from blockx_worker.ports import FunctionCode, StepFailed

__all__ = ["FunctionDescription", "FunctionProblem", "LoadedView"]

MAX_NEAR_MISSES = 3
MAX_SHOWN_PROBLEMS = 3


@attrs.frozen(kw_only=True)
class FunctionProblem:
    """Something in the function folder that cannot be used: file, line where known, reason.

    ``warning``: it can be used, but hardly as it was meant. ``function_id``: the one function that it is about, else "".
    """

    path: str
    reason: str
    line: int | None = None
    warning: bool = False
    function_id: str = ""

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{place}: {self.reason}"


@attrs.frozen(kw_only=True)
class FunctionDescription:
    """One function as people see it; ``doc`` is the first line of its docstring."""

    function_id: str
    digest: str
    entry_selector: str
    signature: str
    doc: str
    no_cache: bool
    path: str
    line: int


class LoadedView:
    """A `FunctionView` over descriptions and code that are there."""

    def __init__(
        self,
        epoch: int,
        functions: Iterable[FunctionDescription],
        codes: Iterable[FunctionCode],
        *,
        problems: Sequence[FunctionProblem] = (),
        audited: frozenset[str] | None = None,
    ) -> None:
        ordered = sorted(functions, key=lambda f: f.function_id)
        self._epoch = epoch
        self._functions: Mapping[str, FunctionDescription] = {f.function_id: f for f in ordered}
        self._codes: Mapping[str, FunctionCode] = {code.digest: code for code in codes}
        self._findings = tuple(problems)
        self._audited = audited

    @property
    def epoch(self) -> int:
        """Version number of this mapping, rising."""
        return self._epoch

    @property
    def function_ids(self) -> Sequence[str]:
        """All functions, sorted."""
        return tuple(self._functions)

    def describe(self) -> Sequence[FunctionDescription]:
        """All functions, sorted by id."""
        return tuple(self._functions.values())

    def problems(self) -> Sequence[FunctionProblem]:
        """What could not be used when this view was made."""
        return tuple(problem for problem in self._findings if not problem.warning)

    def warnings(self) -> Sequence[FunctionProblem]:
        """What can be used, but hardly as it was meant."""
        return tuple(problem for problem in self._findings if problem.warning)

    def unaudited(self) -> Sequence[FunctionDescription]:
        """The functions that an audit gate keeps from running, sorted by id."""
        return tuple(function for function in self.describe() if not self._may_run(function))

    def resolve(self, function_id: str) -> ResolvedFunction:
        """The function of that id; StepFailed(FUNCTION_NOT_FOUND or FUNCTION_NOT_AUDITED)."""
        found = self._functions.get(function_id)
        if found is None:
            raise StepFailed(TaskFailureCode.FUNCTION_NOT_FOUND, self._not_found(function_id))
        if not self._may_run(found):
            raise StepFailed(
                TaskFailureCode.FUNCTION_NOT_AUDITED,
                f'the code of function "{function_id}" (digest {found.digest}) is not on the list of audited code; '
                "have it audited, or run an audited version",
            )
        return ResolvedFunction(
            function_id=function_id,
            digest=found.digest,
            entry_selector=found.entry_selector,
            no_cache=found.no_cache,
        )

    def code(self, digest: str) -> FunctionCode:
        """The code of a digest of this view; KeyError for another."""
        return self._codes[digest]

    def _may_run(self, function: FunctionDescription) -> bool:
        return self._audited is None or function.digest in self._audited

    def _not_found(self, function_id: str) -> str:
        parts = [
            f'function "{shorten(function_id)}" is not among the {len(self._functions)} functions of epoch {self._epoch}'
        ]
        own = [problem for problem in self._findings if problem.function_id == function_id != ""]
        near = self._near_misses(function_id)
        if own:
            parts.append("; ".join(map(str, own)))
        elif near:
            parts.append(f"did you mean {' or '.join(near)}?")
        problems = self.problems()
        if problems:
            shown = "; ".join(str(problem) for problem in problems[:MAX_SHOWN_PROBLEMS])
            parts.append(f"files with problems: {shown}")
        return "; ".join(parts)

    def _near_misses(self, function_id: str) -> list[str]:
        """Ids that are spelled alike; also those that end in the same function name."""
        asked = function_id[:200]
        name = asked.rsplit(".", 1)[-1]
        same_name = [i for i in self._functions if i.rsplit(".", 1)[-1] == name]
        alike = difflib.get_close_matches(asked, self._functions, n=MAX_NEAR_MISSES)
        return list(dict.fromkeys([*alike, *same_name]))[:MAX_NEAR_MISSES]
