"""What stands in etcd under the key of a worker: its address and how busy it is, as JSON that people can read."""

from __future__ import annotations

import msgspec

__all__ = ["WorkerValue", "decode_value", "encode_value"]


class WorkerValue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One worker as it announces itself. ``instance`` differs for each start; ``started_at`` is RFC 3339, in UTC."""

    address: str
    instance: str
    deployment: str = ""
    version: str = ""
    task_slots: int = 0
    reserved_slots: int = 0
    running_tasks: int = 0
    draining: bool = False
    started_at: str = ""

    @property
    def free_slots(self) -> int:
        """Places for further tasks; never below 0."""
        return max(0, self.task_slots - self.reserved_slots - self.running_tasks)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(WorkerValue)


def encode_value(value: WorkerValue) -> bytes:
    """The JSON text, with all fields."""
    return _encoder.encode(value)


def decode_value(data: bytes) -> WorkerValue | None:
    """What a worker announced; unknown fields are passed over. None if somebody else wrote something else there."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None
