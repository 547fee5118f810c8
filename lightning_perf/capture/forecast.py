"""How large a window's trace is going to be, from what the process has allocated for it so far."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

MIB = 1 << 20

MAX_TRACE_MIB = 512
"""Most MiB of a trace as torch writes it, before it is compressed to about a twelfth: some two million events."""

JSON_PER_HEAP = 1.2
"""Bytes of a trace for each byte that the heap grew by while it was recorded.

Measured with torch 2.14 on networks of 2 to 2000 layers with AdamW, recording on the processor: 0.7 to 0.8 with
shapes, 1.2 without or with stacks or allocations; the same from the first step to the last. A window that had more
sets what is assumed of the later ones of its run.
"""


class Forecast:
    """Tells after each recorded step whether the window has to end there.

    Its source is the growth of the C heap since the window began to record: torch and kineto keep what they record
    there until they write it. What training itself allocates meanwhile and keeps is counted too, so a window may be
    ended earlier than needed, never later. Where the heap cannot be asked, the size of the run's last window counts.

    Args:
        cap_bytes: most bytes of a trace before compression, or None for no limit.
        heap_bytes: bytes that the process has allocated, None where unknown.
    """

    def __init__(self, cap_bytes: int | None, heap_bytes: Callable[[], int | None] | None = None) -> None:
        self.cap_bytes = cap_bytes
        self._heap_bytes = allocated_bytes if heap_bytes is None else heap_bytes
        self._began: int | None = None
        self._json_per_heap = JSON_PER_HEAP
        self._bytes_per_step: float | None = None
        self._grown = 0

    def begin(self) -> None:
        """A window begins to record."""
        self._began = None if self.cap_bytes is None else self._heap_bytes()

    def exceeds(self, steps: int, scheduled: int) -> int | None:
        """Bytes that the trace of a whole window would have, if one more step would be more than allowed, or None.

        Args:
            steps: recorded so far, at least 1.
            scheduled: steps of a whole window.
        """
        if self.cap_bytes is None or steps >= scheduled:
            return None
        per_step = self._per_step(steps)
        if per_step is None or per_step * (steps + 1) <= self.cap_bytes:
            return None
        return round(per_step * scheduled)

    def learn(self, steps: int, size: int) -> None:
        """A window of so many steps was saved, in so many bytes."""
        if steps:
            self._bytes_per_step = size / steps
        # Where little was allocated, the blocks in which torch allocates say more than the events.
        if self._grown > MIB:
            self._json_per_heap = max(JSON_PER_HEAP, size / self._grown)
        self._grown = 0

    def _per_step(self, steps: int) -> float | None:
        now = None if self._began is None else self._heap_bytes()
        if now is None or self._began is None:
            return self._bytes_per_step
        self._grown = max(0, now - self._began)
        return self._grown * self._json_per_heap / steps


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc, mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


def allocated_bytes() -> int | None:
    """Bytes that the process has allocated from the C library, or None where it does not tell (all but glibc 2.33).

    Takes 0.05 to 0.5 ms, up to 20 ms after a trace of 500 MB was freed.
    """
    ask = _mallinfo2()
    if ask is None:
        return None
    info = ask()
    return int(info.uordblks) + int(info.hblkhd)


@lru_cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, TypeError, AttributeError):
        return None
    function.restype = _Mallinfo2
    function.argtypes = []
    return function
