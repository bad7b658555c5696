"""A plugin of pytest: `import diskcache` gives `latchwork.cache`.

diskcache's tests store objects of any class, so pickle is allowed: `Disk.allow_pickle` is what `unsafe=True` sets for
one cache, here for all of the process.
"""

import sys

import latchwork.cache
from latchwork.cache import core

latchwork.cache.Disk.allow_pickle = True
sys.modules["diskcache"] = latchwork.cache
sys.modules["diskcache.core"] = core
