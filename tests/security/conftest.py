"""Fixtures of this folder."""

from __future__ import annotations

import pytest

from tests.support.certificates import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Made once: keys take time."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
