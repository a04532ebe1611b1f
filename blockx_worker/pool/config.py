"""How the pool restarts its processes."""

from __future__ import annotations

import attrs
from attrs.validators import ge

__all__ = ["PoolConfig"]


@attrs.frozen(kw_only=True)
class PoolConfig:
    """Size and restart rules; times in ms.

    More than ``max_restarts`` exits of one slot within ``restart_window_ms`` send it into BACKOFF for ``backoff_ms``.
    """

    size: int = attrs.field(validator=ge(1))
    restart_delay_ms: int = attrs.field(default=1_000, validator=ge(0))
    max_restarts: int = attrs.field(default=10, validator=ge(0))
    restart_window_ms: int = attrs.field(default=60_000, validator=ge(1))
    backoff_ms: int = attrs.field(default=30_000, validator=ge(0))
