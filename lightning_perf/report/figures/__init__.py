"""Figures of an analysis for a notebook, the report and the tab: the same plotly objects everywhere.

Importing this costs nothing; plotly and numpy are imported when a figure is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_perf.errors import NothingToShow
from lightning_perf.measure.analysis import Analysis, Window

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["Figures", "before_after"]


class Figures:
    """The figures of one analysis, each made when it is asked for.

    Those of a window take its place in ``Analysis.windows``; without one they show the last. Every figure has a title
    that says what it shows, and one line on how to read it in ``layout.meta["aid"]``. Names from traces are text in
    them, never markup.

    Each raises :class:`~lightning_perf.errors.NothingToShow` where its data were not recorded.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def loop(self) -> go.Figure:
        """The whole run: step time and the wait for data, with epochs, validation, checkpoints and recorded windows."""
        from lightning_perf.report.figures.loop import loop_figure

        return loop_figure(self._analysis)

    def phases(self) -> go.Figure:
        """Where a step goes: the mean step of the run, or of the last window with steps."""
        from lightning_perf.report.figures.steps import phases_figure

        return phases_figure(self._analysis)

    def hooks(self) -> go.Figure:
        """The run's named spans (hooks, callbacks, fetches) by what they cost per step."""
        from lightning_perf.report.figures.loop import hooks_figure

        return hooks_figure(self._analysis)

    def data(self) -> go.Figure:
        """The input pipeline: the step time that other numbers of workers would give, or the wait in each step."""
        from lightning_perf.report.figures.data import data_figure

        return data_figure(self._analysis)

    def steps(self, window: int = -1) -> go.Figure:
        """Each recorded step by phases, above what the busiest device did in it; ``customdata`` has its number."""
        from lightning_perf.report.figures.steps import steps_figure

        return steps_figure(self._window(window))

    def device(self, window: int = -1) -> go.Figure:
        """What each device did: compute, exposed communication, copies, and idle time by cause."""
        from lightning_perf.report.figures.device import device_figure

        return device_figure(self._window(window))

    def gaps(self, window: int = -1) -> go.Figure:
        """The timeline: streams, gaps by cause, and the host, to zoom into."""
        from lightning_perf.report.figures.timeline import gaps_figure

        return gaps_figure(self._window(window))

    def operators(self, window: int = -1) -> go.Figure:
        """The most expensive operators: their own time on the host and on the device."""
        from lightning_perf.report.figures.costs import operators_figure

        return operators_figure(self._window(window))

    def kernels(self, window: int = -1) -> go.Figure:
        """The kernels that took the device most time."""
        from lightning_perf.report.figures.costs import kernels_figure

        return kernels_figure(self._window(window))

    def modules(self, window: int = -1) -> go.Figure:
        """Modules as areas, submodules inside them: time on the device, or on the host where there is none."""
        from lightning_perf.report.figures.modules import modules_figure

        return modules_figure(self._window(window))

    def memory(self, window: int = -1) -> go.Figure:
        """Memory allocated and reserved over time, with its peak."""
        from lightning_perf.report.figures.memory import memory_figure

        return memory_figure(self._window(window))

    def communication(self, window: int = -1) -> go.Figure:
        """Collectives: how much of each ran beside other work, and how much the device did nothing else."""
        from lightning_perf.report.figures.device import communication_figure

        return communication_figure(self._window(window))

    def ranks(self) -> go.Figure:
        """Step time by rank and step, the slowest rank of each step marked."""
        from lightning_perf.report.figures.ranks import ranks_figure

        return ranks_figure(self._analysis)

    def _window(self, index: int) -> Window:
        windows = self._analysis.windows
        if not windows:
            raise NothingToShow("No trace was recorded. Add PerfCallback() to the Trainer, or give a trace file.")
        try:
            return windows[index]
        except IndexError:
            raise NothingToShow(
                f"window={index}: there is no such window; expected 0 to {len(windows) - 1}, or -1 for the last."
            ) from None


def before_after(base: Analysis, candidate: Analysis) -> go.Figure:
    """The mean steps of two runs by phases, one above the other.

    Raises:
        NothingToShow: one of them has no complete step.
    """
    from lightning_perf.report.figures.steps import before_after_figure

    return before_after_figure(base, candidate)
