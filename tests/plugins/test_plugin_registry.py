"""Finding a writer by its type, and the writer that writes nothing."""

import pytest

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.plugins.registry import PluginRegistry
from blockx_worker.plugins.return_value import ReturnValuePlugin
from blockx_worker.ports import StepFailed
from tests.plugins.helpers import Outputs, context


def test_a_writer_is_found_by_its_type() -> None:
    plugin = ReturnValuePlugin()
    assert PluginRegistry([plugin]).get("ReturnValueResultHandler") is plugin
    with pytest.raises(ValueError, match="two plugins of type ReturnValueResultHandler"):
        PluginRegistry([plugin, ReturnValuePlugin()])


def test_an_unknown_type_is_answered_with_the_known_ones() -> None:
    with pytest.raises(StepFailed) as caught:
        PluginRegistry([ReturnValuePlugin()]).get("Print")
    assert caught.value.code is TaskFailureCode.PLUGIN_NOT_FOUND
    assert caught.value.message == (
        'resultHandler.type: this worker has no writer "Print"; it has ReturnValueResultHandler'
    )


async def test_returned_values_stay_with_the_worker() -> None:
    plugin = ReturnValuePlugin()
    assert plugin.keeps_outputs
    plugin.check(b"{}", None)
    plugin.check(b"", (1, 2))
    assert await plugin.write(context(), b"{}", Outputs([1])) == b"{}"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b'{"format": 1}', "resultHandler.format: unknown field: no fields are accepted here"),
        (b"null", "resultHandler: expected a JSON object, got null"),
        (b"{]", "resultHandler: not valid JSON: "),
    ],
)
def test_returning_values_takes_no_settings(config, message) -> None:
    with pytest.raises(StepFailed) as caught:
        ReturnValuePlugin().check(config, None)
    assert caught.value.code is TaskFailureCode.PLUGIN_FAILED
    assert caught.value.message.startswith(message)
