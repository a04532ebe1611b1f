"""Answers that are errors, with what is known of their kind."""

from __future__ import annotations

from collections.abc import Sequence

from blockx_worker.model.errors import IO_ERROR_RETRYABLE, IoErrorKind
from blockx_worker.model.fields import shorten
from blockx_worker.ports import IoAnswer, IoError

__all__ = ["failed", "unknown_op"]


def failed(kind: IoErrorKind, message: str, *, retryable: bool = False) -> IoAnswer:
    """An error of that kind; ``retryable`` counts only for kinds where the error itself says so."""
    fixed = IO_ERROR_RETRYABLE[kind]
    error = IoError(kind=kind, message=message, retryable=retryable if fixed is None else fixed)
    return IoAnswer(error=error)


def unknown_op(backend: str, op: str, known: Sequence[str]) -> IoAnswer:
    """The answer to an operation that the back end does not have."""
    names = " and ".join(known)
    return failed(IoErrorKind.IO_BAD_REQUEST, f'{backend} has no operation "{shorten(op)}"; it has {names}')
