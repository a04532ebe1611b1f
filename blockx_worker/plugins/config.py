"""What all writers share in reading their configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.fields import FieldError, Fields, read_object
from blockx_worker.ports import StepFailed

__all__ = ["config_errors", "plugin_failed", "read_config"]


def plugin_failed(message: str) -> StepFailed:
    """The failure of a writer."""
    return StepFailed(TaskFailureCode.PLUGIN_FAILED, message)


@contextmanager
def config_errors() -> Iterator[None]:
    """A bad field fails the task with PLUGIN_FAILED."""
    try:
        yield
    except FieldError as error:
        raise plugin_failed(str(error)) from None


def read_config(config: bytes, known: Sequence[str]) -> Fields:
    """The configuration's fields; StepFailed if it is no JSON object of known keys."""
    with config_errors():
        return read_object("resultHandler", config, known)
