"""The descriptor set of the served protocols: reflection answers from it, and request bodies are checked with it.

betterproto registers no descriptors, and its parser takes truncated and mistyped bodies without a word; the protobuf
runtime with these descriptors refuses the truncated ones.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

__all__ = ["descriptor_pool", "strict_type"]


@cache
def descriptor_pool() -> DescriptorPool:
    """A pool of its own, apart from the process-wide one, with all served files."""
    files = FileDescriptorSet.FromString(
        resources.files("blockx_worker.rpc.pb").joinpath("worker.desc").read_bytes()
    )
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


@cache
def strict_type(message_type: type) -> Any:
    """The protobuf runtime's class for a generated betterproto class."""
    package = message_type.__module__.removeprefix("blockx_worker.rpc.pb.")
    return message_factory.GetMessageClass(
        descriptor_pool().FindMessageTypeByName(f"{package}.{message_type.__name__}")
    )
