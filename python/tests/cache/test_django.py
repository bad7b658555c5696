"""The backend of Django, with Django's own settings object."""

import time

import pytest

django = pytest.importorskip("django")

from django.conf import settings  # noqa: E402

if not settings.configured:
    settings.configure()

from latchwork.cache.djangocache import DjangoCache  # noqa: E402


@pytest.fixture
def backend(tmp_path):
    return DjangoCache(str(tmp_path), {"OPTIONS": {"size_limit": 2**20}, "KEY_PREFIX": "shop"})


def test_the_calls_of_a_backend(backend):
    assert backend.set("a", [1, {"b": None}])
    assert backend.get("a") == [1, {"b": None}]
    assert backend.get("b", "none") == "none"
    assert not backend.add("a", 2)
    assert backend.add("n", 2)
    assert backend.incr("n", 5) == 7
    assert backend.decr("n") == 6
    with pytest.raises(ValueError):
        backend.incr("no such key")
    assert backend.get_many(["a", "n", "x"]) == {"a": [1, {"b": None}], "n": 6}
    assert backend.set_many({"p": 1, "q": 2}) == []
    assert backend.has_key("p") and "q" in backend
    assert backend.pop("p") == 1
    assert backend.delete("q") and not backend.delete("q")
    assert backend.get_or_set("g", lambda: 9) == 9
    assert backend.incr_version("a") == 2
    assert backend.get("a") is None and backend.get("a", version=2) == [1, {"b": None}]
    assert backend.clear() == 3


def test_timeouts(backend):
    backend.set("never", 1, timeout=None)
    backend.set("now", 1, timeout=0)
    backend.set("past", 1, timeout=-1)
    backend.set("soon", 1, timeout=0.01)
    assert backend.touch("never", 100)
    assert not backend.touch("now")
    time.sleep(0.02)
    assert [backend.get(key) for key in ("never", "now", "past", "soon")] == [1, None, None, None]
    assert backend.get("never", expire_time=True)[1] > time.time()


def test_memoize_and_tags(backend):
    calls = []

    @backend.memoize(tag="t")
    def double(value):
        calls.append(value)
        return 2 * value

    assert double(2) == double(2) == 4
    assert calls == [2]
    backend.set("x", 1, tag="t")
    assert backend.evict("t") == 2
    assert double(2) == 4
    assert calls == [2, 2]
    backend.deque("jobs").append(1)
    assert list(backend.deque("jobs")) == [1]
