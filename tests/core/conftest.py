from __future__ import annotations

import pytest

from tests.core.core_talk import Talk


@pytest.fixture
def talk() -> Talk:
    """A worker with default limits at time 0."""
    return Talk()
