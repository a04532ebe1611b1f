"""The call configuration ``NumbersCallConfig {"functionId", "from", "to"}``: a call for each number, made as they run."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from blockx_worker import extensions as bx


class NumbersBuilder:
    """Builds calls with one number each."""

    type = "NumbersCallConfig"

    async def build(self, context: bx.BuilderContext, config: bytes) -> bx.BuildResult:
        """Check everything here: what is wrong fails the task before a call runs."""
        try:
            fields = bx.read_object("functionCallConfig", config, ("functionId", "from", "to"))
            first = fields.integer("from", 0)
            numbers = range(first, fields.integer("to", first) + 1)
            function = context.view.resolve(fields.text("functionId"))
        except bx.FieldError as error:
            raise bx.StepFailed(bx.TaskFailureCode.BUILDER_FAILED, str(error)) from None
        return bx.BuildResult(stream=Numbers(function, numbers, context.batch_max_rows))


class Numbers:
    """Makes a batch whenever there is credit for one, so that a range of any length needs little memory."""

    def __init__(self, function: bx.ResolvedFunction, numbers: range, rows: int) -> None:
        self.function = function
        self._numbers = numbers
        self._rows = rows

    async def batches(self) -> AsyncGenerator[bx.CallBatch, None]:
        """Yield the calls in order; each list of arguments is JSON text."""
        for start in range(0, len(self._numbers), self._rows):
            part = self._numbers[start : start + self._rows]
            yield bx.CallBatch(start, [bx.Raw(b"[%d]" % number) for number in part])


def make(section: Mapping[str, Any], services: bx.ExtensionServices) -> NumbersBuilder:
    """Make the builder, which needs no settings."""
    return NumbersBuilder()
