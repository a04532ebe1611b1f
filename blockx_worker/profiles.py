"""Deployment profiles: data only.

A profile names what a deployment is called where others see it, which builders and plugins its worker offers, and which
defaults it tunes. A builder or plugin that a profile does not list does not exist for its tasks. Tuned defaults are
weaker than the configuration file, the environment and flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

__all__ = ["PROFILES", "Profile"]


_NOTHING: Mapping[str, object] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class Profile:
    """One deployment shape. ``tune_defaults`` maps field paths such as ``dispatcher.call_deadline_ms`` to values."""

    name: str
    deployment: str
    service: str
    usage_service: str
    worker_registry_prefix: str
    builders: tuple[str, ...]
    plugins: tuple[str, ...]
    tune_defaults: Mapping[str, object] = _NOTHING


_BLOCK = Profile(
    name="block",
    deployment="block",
    service="blockx-worker",
    usage_service="blockx-block",
    worker_registry_prefix="/blockx/workers/block/",
    builders=("CallListCallConfig", "BlockTableCallConfig"),
    plugins=("ReturnValueResultHandler", "BlockWriteHandler"),
)

# Bundles are short lists of calls whose values go back to whoever asked: many small tasks, nothing written.
_BUNDLE = Profile(
    name="bundle",
    deployment="bundle",
    service="blockx-bundle-worker",
    usage_service="blockx-bundle",
    worker_registry_prefix="/blockx/workers/bundle/",
    builders=("CallListCallConfig",),
    plugins=("ReturnValueResultHandler",),
    tune_defaults=MappingProxyType({"task_slots": 256, "admission.executor_task_slots": 128}),
)

PROFILES: Mapping[str, Profile] = MappingProxyType({p.name: p for p in (_BLOCK, _BUNDLE)})
