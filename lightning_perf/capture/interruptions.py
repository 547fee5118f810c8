"""Spans for what interrupts the loop anywhere: Python's garbage collector and torch's compiler."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from lightning_perf.capture import kinds

OpenSpan = Callable[[str], AbstractContextManager[object]]


class Interruptions:
    """Times collections (of all but the youngest objects, which cost microseconds) and compilations.

    Both announce themselves: ``gc.callbacks`` of Python, and the compilation callbacks of ``torch._dynamo``, which is
    not imported for it. A collection or a compilation in another thread than the clock's is no part of the loop.
    """

    def __init__(self, open_span: OpenSpan) -> None:
        self._open_span = open_span
        self._open: dict[str, tuple[AbstractContextManager[object], int]] = {}
        self._undo: list[Callable[[], None]] = []
        self._compiler_watched = False

    def watch(self) -> None:
        """Begin, or begin with what was imported since."""
        if not self._undo:
            gc.callbacks.append(self._collects)
            self._undo.append(lambda: gc.callbacks.remove(self._collects))
        callbacks = sys.modules.get("torch._dynamo.callback")
        handler = getattr(callbacks, "callback_handler", None)
        if handler is not None and not self._compiler_watched:
            self._compiler_watched = True
            handler.register_start_callback(self._compilation_begins)
            self._undo.append(lambda: handler.remove_start_callback(self._compilation_begins))
            handler.register_end_callback(self._compilation_ends)
            self._undo.append(lambda: handler.remove_end_callback(self._compilation_ends))

    def end(self) -> None:
        """Watch no more. Somebody who has cleared the lists of callbacks has done it already."""
        while self._undo:
            try:
                self._undo.pop()()
            except ValueError:
                continue
        self._compiler_watched = False

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"]:
            if phase == "start":
                self._begin(kinds.GC)
            else:
                self._finish(kinds.GC)

    def _compilation_begins(self, *_: object) -> None:
        self._begin(kinds.COMPILE)

    def _compilation_ends(self, *_: object) -> None:
        self._finish(kinds.COMPILE)

    def _begin(self, name: str) -> None:
        span = self._open_span(name)
        self._open[name] = span, threading.get_ident()
        span.__enter__()

    def _finish(self, name: str) -> None:
        """End a span in the thread that began it; one that ends elsewhere ends with what it lies in."""
        span, thread = self._open.pop(name, (None, 0))
        if span is not None and thread == threading.get_ident():
            span.__exit__(None, None, None)
