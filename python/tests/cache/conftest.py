"""Fixtures of the cache's tests."""

import pytest

from latchwork.cache import Cache


@pytest.fixture
def cache(tmp_path):
    with Cache(tmp_path / "cache") as cache:
        yield cache
        assert cache.check() == []
