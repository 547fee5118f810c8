"""Which steps torch.profiler records: pure functions of the step number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from lightning_perf.errors import ConfigError

Action = Literal["off", "warmup", "record"]


@dataclass(frozen=True)
class Schedule:
    """When to record, counted in steps (batches) from the start of the run, beginning with 0.

    After ``skip_first`` steps come cycles of ``wait`` steps without the profiler, ``warmup`` steps with it
    running but its data thrown away (the first profiled steps are slow), and ``active`` recorded steps.
    ``repeat`` is the number of cycles, 0 for as many as the run holds. The meaning is that of
    ``torch.profiler.schedule``. One trace file is written for each cycle.

    Raises:
        ConfigError: a value is not a whole number, is negative, or ``active`` is 0.
    """

    skip_first: int = 10
    wait: int = 2
    warmup: int = 2
    active: int = 6
    repeat: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "active" else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"schedule: {field.name}={value!r}; expected a whole number of at least {least}. "
                    f"Set {field.name} to a number of steps."
                )

    @property
    def cycle(self) -> int:
        """Steps in one cycle."""
        return self.wait + self.warmup + self.active

    def action(self, step: int) -> Action:
        """What the profiler does during a step."""
        into = step - self.skip_first
        if into < 0 or (self.repeat and into // self.cycle >= self.repeat):
            return "off"
        into %= self.cycle
        if into < self.wait:
            return "off"
        return "warmup" if into < self.wait + self.warmup else "record"

    def begins_window(self, step: int) -> bool:
        """Whether a step is the first of its cycle in which the profiler runs."""
        return self.action(step) != "off" and (step - self.skip_first) % self.cycle == self.wait

    def ends_window(self, step: int) -> bool:
        """Whether a step is the last recorded one of its cycle."""
        return self.action(step) == "record" and (step - self.skip_first) % self.cycle == self.cycle - 1

    def next_window(self, step: int) -> int | None:
        """The first step from ``step`` on in which the profiler is to be started, None if there is none."""
        into = max(0, step - self.skip_first)
        cycle = into // self.cycle + (into % self.cycle > self.wait)
        return None if self.repeat and cycle >= self.repeat else self.skip_first + cycle * self.cycle + self.wait

    @property
    def first_recorded(self) -> int:
        """Number of the first recorded step."""
        return self.skip_first + self.wait + self.warmup


def schedule_from(setting: Schedule | Mapping[str, int] | None) -> Schedule | None:
    """A schedule from what the user gave: a Schedule, a mapping of some of its fields, or None.

    Raises:
        ConfigError: the mapping has a key that Schedule has not, or a value that it does not accept.
    """
    if setting is None or isinstance(setting, Schedule):
        return setting
    if not isinstance(setting, Mapping):
        raise ConfigError(
            f"schedule={setting!r}; expected a mapping such as {{'skip_first': 10, 'active': 6}}, a Schedule or None."
        )
    known = [field.name for field in fields(Schedule)]
    unknown = [key for key in setting if key not in known]
    if unknown:
        raise ConfigError(f"schedule: unknown key {unknown[0]!r}; expected some of {', '.join(known)}.")
    return Schedule(**setting)


def fit_to(total_steps: int | None) -> Schedule:
    """The default schedule, shortened so that a run of ``total_steps`` still records about half of its steps.

    A run that is long enough, or of unknown length (None), gets the default. A shorter one gives up waiting
    and skipping first, then warm-up, and always records at least one step.
    """
    default = Schedule()
    if total_steps is None or total_steps >= default.first_recorded + default.active:
        return default
    active = max(1, min(default.active, total_steps // 2))
    spare = max(0, total_steps - active)
    warmup = min(default.warmup, (spare + 1) // 2)
    return Schedule(skip_first=spare - warmup, wait=0, warmup=warmup, active=active, repeat=1)
