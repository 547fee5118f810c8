"""Analysis -> one HTML file that opens from disk, with no network: the pages of the tab, and what draws them."""

from __future__ import annotations

import html as markup
import os
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from lightning_perf.errors import PerfError
from lightning_perf.measure.analysis import Analysis, Window, last_window
from lightning_perf.report.blocks import Page, View, plain
from lightning_perf.report.comparison_view import compare_page
from lightning_perf.report.console import summarize_run, summarize_trace
from lightning_perf.report.page import page, ranks_page, steps_text
from lightning_perf.runinfo import Record, write_bytes

if TYPE_CHECKING:
    from lightning_perf.report.figures import Figures

MOST_WINDOWS: Final = 24
"""Windows that a report shows, the latest ones: each takes some hundred kB and a tenth of a second."""

VIEW: Final = files("lightning_perf.report") / "view"
"""Where the script and the style sheet of the pages lie."""

_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
"""What the file may do in a browser: nothing that reaches for a network."""

_SOURCE: Final = """
const data = JSON.parse(document.getElementById("data").textContent);
const ready = (page, window) => ({ state: "ready", page, window });
mount(document.getElementById("app"), {
  live: false,
  runs: async () => ({ logdir: "", scanning: false, problem: null, runs: [data.run] }),
  page: async (run, window) => {
    const id = data.pages[window] ? window : data.shown;
    return ready(data.pages[id], id);
  },
  ranks: data.ranks ? async () => ready(data.ranks) : null,
  compare: null,
  compared: data.compared ? async () => ready(data.compared) : null,
  traceUrl: (run, window) => data.traces[window] ?? null,
  loadPlotly: async () => { throw new Error("plotly is not in this file"); },
});
"""


class _WindowName(Record, frozen=True, kw_only=True):
    id: str
    label: str


class _RunName(Record, frozen=True, kw_only=True):
    id: str
    name: str
    windows: list[_WindowName]


class _Document(Record, frozen=True, kw_only=True):
    """What the file holds. ``traces`` are links beside the file, by window."""

    run: _RunName
    pages: dict[str, Page]
    shown: str
    ranks: View | None
    compared: View | None
    traces: dict[str, str]


class Report:
    """What was measured, for people: its ``figures`` for notebooks, and the whole as HTML or as text.

    Args:
        analysis: of a run or of traces.
        baseline: an earlier run, which the report then compares with.

    Example:
        >>> report = callback.report  # doctest: +SKIP
        >>> report.figures.loop()  # doctest: +SKIP
        >>> report.save("report.html")  # doctest: +SKIP
    """

    def __init__(self, analysis: Analysis, baseline: Analysis | None = None) -> None:
        self.analysis = analysis
        self.baseline = baseline

    @property
    def figures(self) -> Figures:
        """The figures, each a plotly figure that a notebook shows."""
        return self.analysis.figures

    def html(self, folder: Path | None = None, windows: int = MOST_WINDOWS) -> bytes:
        """The report with the latest ``windows``. Traces in ``folder`` are linked: the file is to lie there too."""
        return html(self.analysis, folder, self.baseline, windows)

    def save(self, path: str | os.PathLike[str], windows: int = MOST_WINDOWS) -> Path:
        """Write the report with the latest ``windows``, replacing what is there; where it lies.

        Raises:
            PerfError: it cannot be written.
        """
        target = Path(path)
        try:
            write_bytes(target, self.html(target.parent, windows))
        except OSError as error:
            raise PerfError(f"{target}: cannot be written ({error.strerror}); name another file") from error
        return target

    def __str__(self) -> str:
        """The summary that a run shows at its end."""
        if self.analysis.run is not None:
            return summarize_run(self.analysis, None)
        findings = self.analysis.findings
        return "\n\n".join(
            summarize_trace(window, [one for one in findings if one.trace == window.trace])
            for window in self.analysis.windows
        )


def html(
    analysis: Analysis, folder: Path | None = None, baseline: Analysis | None = None, windows: int = MOST_WINDOWS
) -> bytes:
    """The report as one HTML file: verdict and findings, figures, tables.

    Args:
        analysis: of a run or of traces.
        folder: where the file is going to lie. Traces that lie in it are linked.
        baseline: an earlier run to compare with.
        windows: how many of the latest windows are shown.
    """
    document = _document(analysis, folder, baseline, windows)
    title = markup.escape(document.pages[document.shown].title)
    style = (VIEW / "app.css").read_text(encoding="utf-8")
    script = (VIEW / "app.js").read_text(encoding="utf-8")
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{title}</title>",
        f"<style>\n{style}</style>\n</head>\n<body>",
        '<div id="app"><noscript>This report is drawn by a script, which this browser does not run.</noscript></div>',
        f'<script type="application/json" id="data">{_json(document)}</script>',
        f"<script>{plotly_script().decode()}</script>",
        f'<script type="module">\n{script}{_SOURCE}</script>\n</body>\n</html>\n',
    ]
    return "\n".join(parts).encode()


def plotly_script() -> bytes:
    """The script that draws, as the installed plotly brings it."""
    return plotly_script_path().read_bytes()


def plotly_script_path() -> Path:
    """Where the installed plotly has its script. plotly itself is not imported.

    Raises:
        PerfError: plotly is not installed, or has no such file.
    """
    found = find_spec("plotly")
    for folder in found.submodule_search_locations or () if found is not None else ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    raise PerfError("plotly's script was not found; install plotly again: pip install --force-reinstall plotly")


def window_label(window: Window) -> str:
    """A window in a few words: its rank and steps, or the name of its file."""
    numbers = [step.number for step in window.steps]
    if not numbers:
        return plain(Path(window.trace).name, 60)
    rank = f"rank {window.rank} · " if window.rank is not None else ""
    return f"{rank}{steps_text(numbers)} · {plain(Path(window.trace).name, 40)}"


def _document(analysis: Analysis, folder: Path | None, baseline: Analysis | None, most: int) -> _Document:
    windows = analysis.windows
    own = last_window(analysis)
    shown = windows.index(own) if own is not None else max(0, len(windows) - 1)
    first = max(0, min(shown, len(windows) - most))
    places = range(first, max(1, min(len(windows), first + most)))
    names = [_WindowName(id=str(place), label=window_label(windows[place])) for place in places if windows]
    several = len({window.rank for window in windows if window.rank is not None}) > 1
    return _Document(
        run=_RunName(id="run", name="run", windows=names),
        pages={str(place): page(analysis, place) for place in places},
        shown=str(shown),
        ranks=ranks_page(analysis) if several else None,
        compared=compare_page(baseline, analysis) if baseline is not None else None,
        traces=_links(windows, folder),
    )


def _links(windows: Sequence[Window], folder: Path | None) -> dict[str, str]:
    """Links to the traces that lie in a folder."""
    if folder is None:
        return {}
    names = {str(place): Path(window.trace).name for place, window in enumerate(windows)}
    return {place: quote(name) for place, name in names.items() if (folder / name).is_file()}


def _json(document: _Document) -> str:
    """JSON that can stand inside a script element: what could end it is written as an escape."""
    text = msgspec.json.encode(document).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
