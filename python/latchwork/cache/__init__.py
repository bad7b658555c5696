"""A cache, a queue, a mapping and locks that threads and processes share, with the public interface of diskcache.

Values are plain data unless a cache is opened with `unsafe=True`, which allows pickle.
"""

from .constants import DEFAULT_SETTINGS, ENOVAL, EVICTION_POLICY, UNKNOWN, EmptyDirWarning, Timeout, UnknownFileWarning
from .core import Cache
from .deque import Deque
from .disk import Disk, JSONDisk, PickleDisk
from .fanout import FanoutCache
from .index import Index
from .recipes import Averager, BoundedSemaphore, Lock, RLock, barrier, memoize_stampede, throttle

__all__ = [
    "DEFAULT_SETTINGS",
    "ENOVAL",
    "EVICTION_POLICY",
    "UNKNOWN",
    "Averager",
    "BoundedSemaphore",
    "Cache",
    "Deque",
    "Disk",
    "EmptyDirWarning",
    "FanoutCache",
    "Index",
    "JSONDisk",
    "Lock",
    "PickleDisk",
    "RLock",
    "Timeout",
    "UnknownFileWarning",
    "barrier",
    "memoize_stampede",
    "throttle",
]
