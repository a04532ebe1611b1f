"""Finding a builder by its type."""

import pytest

from blockx_worker.builders.block_table import BlockTableBuilder
from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.builders.registry import BuilderRegistry
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import StepFailed


def test_a_builder_is_found_by_its_type() -> None:
    call_list = CallListBuilder()
    assert BuilderRegistry([call_list]).get("CallListCallConfig") is call_list


def test_an_unknown_type_is_answered_with_the_known_ones() -> None:
    registry = BuilderRegistry([CallListBuilder(), BlockTableBuilder(None)])
    with pytest.raises(StepFailed) as caught:
        registry.get("CallList")
    assert caught.value.code is TaskFailureCode.BUILDER_NOT_FOUND
    assert caught.value.message == (
        'functionCallConfig.type: this worker has no builder "CallList"; '
        "it has BlockTableCallConfig, CallListCallConfig"
    )
    with pytest.raises(StepFailed, match='no builder ""; it has none'):
        BuilderRegistry().get("")


def test_two_builders_of_one_type_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="two builders of type CallListCallConfig"):
        BuilderRegistry([CallListBuilder(), CallListBuilder()])
