"""Private names: how the modules of one digest are called in ``sys.modules``, and how people see them.

The module ``chain.erc20`` of a digest is ``_blockx_fn_<digest>.chain.erc20``; so two versions live side by side. Texts
for people show it as ``chain.erc20``.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MODULE_PREFIX", "private_root", "public_text"]

MODULE_PREFIX: Final = "_blockx_fn_"
"""How the private names of function modules begin."""

_DIGEST_CHARS: Final = 12
_PRIVATE: Final = re.compile(MODULE_PREFIX + r"\w+\.(?=\w)")


def private_root(digest: str) -> str:
    """The name above all modules of ``digest``; digests that begin alike have the same."""
    return MODULE_PREFIX + re.sub(r"\W", "_", digest.rpartition(":")[2], flags=re.ASCII)[:_DIGEST_CHARS]


def public_text(text: str) -> str:
    """``text`` without private names."""
    return _PRIVATE.sub("", text) if MODULE_PREFIX in text else text
