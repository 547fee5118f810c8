"""Labels in the trace: one range per span of the loop, and per module down to a chosen depth.

Nothing here runs while no window is open.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.profiler import record_function

from lightning_perf.names import label

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from lightning_perf.capture.clock import LoopClock


class Marks:
    """The clock's marker: opens and closes ``perf/...`` ranges in the order of the loop's spans."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._open: list[tuple[object, record_function]] = []
        self._hooks: list[RemovableHandle] = []

    def enter(self, span: object, label: str) -> None:
        """Open a range for a span."""
        opened = record_function(label)
        opened.__enter__()  # type: ignore[no-untyped-call]
        self._open.append((span, opened))

    def leave(self, span: object) -> None:
        """Close the range of a span, and any inside it. A span without one, opened before the window, is ignored."""
        if any(owner is span for owner, _ in self._open):
            closed = None
            while closed is not span:
                closed, opened = self._open.pop()
                opened.__exit__(None, None, None)

    def attach(self, root: nn.Module, module_depth: int) -> None:
        """Label the forward of each module whose name has at most ``module_depth`` parts."""
        for name, module in root.named_modules():
            if name and name.count(".") < module_depth and not isinstance(module, torch.jit.ScriptModule):
                self._label_module(name, module)

    def close(self) -> None:
        """Close what is open and take the module hooks away."""
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _label_module(self, name: str, module: nn.Module) -> None:
        calls: list[object] = []

        def before(_module: nn.Module, _inputs: object) -> None:
            if threading.get_ident() == self._thread:
                calls.append(object())
                self.enter(calls[-1], label(self._clock.phase, name))

        def after(_module: nn.Module, _inputs: object, _output: object) -> None:
            if calls and threading.get_ident() == self._thread:
                self.leave(calls.pop())

        self._hooks.append(module.register_forward_pre_hook(before))
        self._hooks.append(module.register_forward_hook(after, always_call=True))
