"""Memory that is used and freed again and again stays with the process."""

from __future__ import annotations

import functools

import numpy as np

_ONCE_BYTES = (32 << 20) - 65_536
"""A little less than the most to which glibc raises its threshold, 32 MiB."""


@functools.cache
def keep_freed_memory() -> None:
    """Lets the process keep freed memory, up to 64 MiB of each heap, instead of giving it back to the kernel.

    glibc maps what is larger than a threshold on its own, and unmaps it when it is freed. Messages of a stream then
    consist of pages that the kernel has to zero each time, which costs more than copying them. The threshold rises
    to the size of the largest such memory that was ever freed; this frees some that nobody has touched. Another
    allocator takes no notice.
    """
    np.empty(_ONCE_BYTES, np.uint8)
