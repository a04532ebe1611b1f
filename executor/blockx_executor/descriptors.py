"""Descriptors of the executor lie high, where code that closes "all" descriptors from 3 on seldom looks."""

from __future__ import annotations

import fcntl
import os
import resource
from typing import Final

__all__ = ["raise_descriptor"]

_HIGHEST: Final = 4096  # the kernel keeps a table up to the highest one
_ROOM: Final = 32


def raise_descriptor(descriptor: int) -> int:
    """Move ``descriptor`` up, closed on exec; the new number. It stays where it is when there is no room above."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _HIGHEST if soft == resource.RLIM_INFINITY else min(soft, _HIGHEST)
    try:
        raised = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(3, limit - _ROOM))
    except OSError:
        return descriptor
    os.close(descriptor)
    return raised
