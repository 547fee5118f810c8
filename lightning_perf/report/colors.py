"""Colours of phases, of causes and of a device's work: the same everywhere, and told apart by colour-blind readers.

The hues are those of Okabe and Ito, "Color Universal Design" (https://jfly.uni-koeln.de/color/). What keeps the host
busy (``sync``, ``launch``, ``python``, ...) shares one of them in tints; what the host does beside training has greys.
Where nothing runs there is white with a grey outline, and hatching where nobody knows why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lightning_perf.measure.timeline import WorkKind
from lightning_perf.names import Cause, Phase

Pattern = Literal["", "/", "\\", "x", "-", "|", "+", "."]

ORANGE: Final = "#E69F00"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
PINK: Final = "#CC79A7"
VERMILION: Final = "#D55E00"
WHITE: Final = "#FFFFFF"
OUTLINE: Final = "#8A8A8A"
"""Around what is white, and for marks: visible on white and on near-black."""

FAINT: Final = "rgba(128, 128, 128, 0.18)"
"""Behind data: recorded windows, grids."""


@dataclass(frozen=True, slots=True)
class Paint:
    """How an area is filled: ``color``, and hatched in ``OUTLINE`` where there is a ``pattern``."""

    color: str
    pattern: Pattern = ""


def tint(color: str, share: float) -> str:
    """A colour mixed with white: 1 is the colour itself, 0 white.

    >>> tint("#D55E00", 0.5)
    '#EAAE80'
    """
    channels = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - channel)):02X}" for channel in channels)


PHASE_PAINT: Final[dict[Phase, Paint]] = {
    "data": Paint(ORANGE),
    "transfer": Paint(YELLOW),
    "forward": Paint(BLUE),
    "backward": Paint(SKY),
    "optimizer": Paint(GREEN),
    "logging": Paint("#B3B3B3"),
    "callbacks": Paint("#999999"),
    "validation": Paint("#808080"),
    "checkpoint": Paint("#666666"),
    "other": Paint("#DEDEDE"),
}

CAUSE_PAINT: Final[dict[Cause, Paint]] = {
    "data_loading": Paint(ORANGE),
    "transfer": Paint(YELLOW),
    "sync": Paint(VERMILION),
    "launch": Paint(tint(VERMILION, 0.7)),
    "optimizer": Paint(GREEN),
    "python": Paint(tint(VERMILION, 0.4)),
    "callbacks": Paint("#999999"),
    "logging": Paint("#B3B3B3"),
    "checkpoint": Paint("#666666"),
    "validation": Paint("#808080"),
    "gc": Paint(tint(VERMILION, 0.85), "\\"),
    "compile": Paint(tint(VERMILION, 0.55), "\\"),
    "allocation": Paint(tint(VERMILION, 0.25), "\\"),
    "module_load": Paint(tint(VERMILION, 0.4), "\\"),
    "communication_host": Paint(PINK),
    "profiler": Paint(WHITE, "|"),
    "device_gap": Paint(WHITE),
    "device_wait": Paint(WHITE, "-"),
    "untraced_device_work": Paint(WHITE, "+"),
    "step_edge": Paint("#EFEFEF"),
    "between_steps": Paint("#EFEFEF", "."),
    "unknown": Paint(WHITE, "x"),
}

WORK_PAINT: Final[dict[WorkKind, Paint]] = {
    "compute": Paint(BLUE),
    "communication": Paint(PINK),
    "copy": Paint(YELLOW),
}

IDLE_PAINT: Final = Paint(WHITE)
HOST_PAINT: Final = Paint(tint(VERMILION, 0.7))
"""Time of the host that is compared with that of a device: it is what launching takes."""

HOST_COMPUTES: Final = "operators"
"""What ``launch`` is called where there is no device to launch anything on; it is painted as computing."""
