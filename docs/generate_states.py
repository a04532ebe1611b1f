"""Draw the state diagrams in `docs/design/states.md` from the transition tables that the machines themselves use.

`python docs/generate_states.py` writes the page; with `--check` it writes nothing and fails when the page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

PAGE = Path(__file__).resolve().parent / "design" / "states.md"
sys.path.insert(0, str(PAGE.parents[2]))

from blockx_worker.core import states as core  # noqa: E402 - the repository's own tree comes first on the path
from blockx_worker.dispatch import states as dispatch  # noqa: E402
from blockx_worker.pool import states as pool  # noqa: E402
from blockx_worker.registry import states as registry  # noqa: E402

State = TypeVar("State", bound=StrEnum)

INTRO = """\
# States

Every picture on this page is drawn by `docs/generate_states.py` from the table that the machine looks its moves up in.
An event that a table has no arrow for changes nothing: it is dropped and counted.
"""


def page() -> str:
    """The whole page as Markdown."""
    sections = [
        INTRO,
        section(
            "Task slots",
            "One of `task_slots` places. The table is `SLOT_TRANSITIONS` in `blockx_worker/core/states.py`.",
            diagram(core.SLOT_TRANSITIONS, core.INITIAL_SLOT_STATE),
        ),
        section(
            "Tasks",
            "From the lease of a slot to the end of the task: `TASK_TRANSITIONS` in `blockx_worker/core/states.py`."
            " An arrow from a committing stage to itself means that the end is put off: it happens once a commit that"
            " others may follow has returned, and gives way to the writer's outcome after the final one.",
            diagram(core.TASK_TRANSITIONS, core.INITIAL_STAGE),
            "What clients see of each stage:",
            visible_table(),
        ),
        section(
            "Calls",
            "One call of a task: `TRANSITIONS` in `blockx_worker/dispatch/states.py`.",
            diagram(dispatch.TRANSITIONS, next(iter(dispatch.TRANSITIONS))[0]),
        ),
        section(
            "Executor slots",
            "One place for an executor process: `TRANSITIONS` in `blockx_worker/pool/states.py`."
            " A slot is RUNNING from the moment its process was ordered.",
            diagram(pool.TRANSITIONS, pool.INITIAL_STATE),
        ),
        section(
            "Registration",
            "The worker's key in etcd: `TRANSITIONS` in `blockx_worker/registry/states.py`. Serving goes on in every state.",
            diagram(registry.TRANSITIONS, registry.INITIAL_STATE),
        ),
    ]
    return "\n".join(sections)


def section(title: str, *parts: str) -> str:
    """A heading and its paragraphs."""
    return f"## {title}\n\n" + "\n\n".join(parts) + "\n"


def diagram(transitions: Mapping[tuple[State, str], State], initial: State) -> str:
    """A transition table as a Mermaid state diagram; moves between the same two states share one arrow."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, event), after in transitions.items():
        arrows.setdefault((state, after), []).append(str(event))
    lines = ["```mermaid", "stateDiagram-v2", f"  [*] --> {initial}"]
    lines += [f"  {state} --> {after}: {' / '.join(events)}" for (state, after), events in arrows.items()]
    left = {state for state, _ in transitions}
    ends = dict.fromkeys(after for after in transitions.values() if after not in left)
    lines += [f"  {end} --> [*]" for end in ends]
    return "\n".join([*lines, "```"])


def visible_table() -> str:
    """Stages against the state and phase that clients see."""
    rows = [f"| {stage} | {state} | {phase or ''} |" for stage, (state, phase) in core.VISIBLE.items()]
    return "\n".join(["| stage | state | phase |", "| --- | --- | --- |", *rows])


def main() -> int:
    """Write or check the page; 1 when a check finds it stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when the page is stale")
    wanted = page()
    if not parser.parse_args().check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(
        "docs/design/states.md is stale: run python docs/generate_states.py and commit the result",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
