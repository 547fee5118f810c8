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
        self._open: list[tuple[int, record_function]] = []
        self._hooks: list[RemovableHandle] = []

    def enter(self, depth: int, label: str) -> None:
        """Open a range at a nesting depth of the clock's stack."""
        opened = record_function(label)
        opened.__enter__()  # type: ignore[no-untyped-call]
        self._open.append((depth, opened))

    def leave(self, depth: int) -> None:
        """Close every range at this depth or deeper, innermost first."""
        while self._open and self._open[-1][0] >= depth:
            self._open.pop()[1].__exit__(None, None, None)

    def attach(self, root: nn.Module, module_depth: int) -> None:
        """Label the forward of each module whose name has at most ``module_depth`` parts."""
        for name, module in root.named_modules():
            if name and name.count(".") < module_depth and not isinstance(module, torch.jit.ScriptModule):
                self._label_module(name, module)

    def close(self) -> None:
        """Close what is open and take the module hooks away."""
        self.leave(0)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _label_module(self, name: str, module: nn.Module) -> None:
        own: list[tuple[int, record_function]] = []

        def before(_module: nn.Module, _inputs: object) -> None:
            if threading.get_ident() == self._thread:
                self.enter(len(self._clock.stack), label(self._clock.phase, name))
                own.append(self._open[-1])

        def after(_module: nn.Module, _inputs: object, _output: object) -> None:
            if own and threading.get_ident() == self._thread:
                mine = own.pop()
                # An exception may have closed it already, together with the span around it.
                while mine in self._open:
                    self._open.pop()[1].__exit__(None, None, None)

        self._hooks.append(module.register_forward_pre_hook(before))
        self._hooks.append(module.register_forward_hook(after, always_call=True))
