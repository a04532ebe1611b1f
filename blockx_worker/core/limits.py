"""The limits that WorkerCore works under; every size and wait of the machine has its name here."""

from __future__ import annotations

import attrs
from attrs.validators import ge

__all__ = ["WorkerLimits"]


@attrs.frozen(kw_only=True)
class WorkerLimits:
    """Limits of one worker; times in ms of core time.

    ``default_timeout_ms`` is what the shell fills in for a request without one; the core only checks the range
    1..``max_timeout_ms``. ``watch_disconnect_grace_ms`` 0 switches the grace off.
    """

    task_slots: int = attrs.field(default=64, validator=ge(1))
    default_ttl_ms: int = attrs.field(default=30_000, validator=ge(1))
    max_ttl_ms: int = attrs.field(default=600_000, validator=ge(1))
    default_timeout_ms: int = attrs.field(default=600_000, validator=ge(1))
    max_timeout_ms: int = attrs.field(default=86_400_000, validator=ge(1))
    result_retention_ms: int = attrs.field(default=600_000, validator=ge(0))
    result_retention_count: int = attrs.field(default=10_000, validator=ge(1))
    result_retention_bytes: int = attrs.field(default=1 << 30, validator=ge(0))
    watch_disconnect_grace_ms: int = attrs.field(default=30_000, validator=ge(0))

    def __attrs_post_init__(self) -> None:
        for default, maximum in (("default_ttl_ms", "max_ttl_ms"), ("default_timeout_ms", "max_timeout_ms")):
            if getattr(self, default) > getattr(self, maximum):
                raise ValueError(
                    f"{default} is {getattr(self, default)}, above {maximum} = {getattr(self, maximum)};"
                    f" give at most {maximum}",
                )
