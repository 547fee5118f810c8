"""How long the TensorBoard tab takes: a trace that it never saw, the same again, and from view to view.

``python benchmarks/tab.py FILE...`` starts a TensorBoard with our tab on copies of the traces, opens it in a browser
(chromium, headless) and takes times in the page: from choosing a run to its verdict and first figure, with the trace
still to be analysed and with the page already made; then for each view from the click to its last figure. Each
repetition is of a fresh copy, in a shuffled order.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from printing import command, machine, table, with_spread
from speed import name_of, traces_at, unpacked

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.board import CHROMIUM, browsing, serving, tab_of

if TYPE_CHECKING:
    from playwright.sync_api import Frame

PACKAGES = ("tensorboard", "plotly", "playwright")

OPEN = """async ([run, title]) => {
  const list = document.querySelector('select[aria-label=run]');
  const start = performance.now();
  list.value = run;
  list.dispatchEvent(new Event('change'));
  for (;;) {
    const shown = document.querySelector('h1')?.textContent.includes(title);
    const drawn = document.querySelector('#lp-view-overview .main-svg');
    if (shown && drawn && location.hash.includes(`run=${encodeURIComponent(run)}`)) return performance.now() - start;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}"""

SWITCH = """async (view) => {
  const start = performance.now();
  document.getElementById(`lp-tab-${view}`).click();
  const panel = document.getElementById(`lp-view-${view}`);
  const plots = [...panel.querySelectorAll('.lp-plot')];
  while (!plots.every((plot) => plot.querySelector('.main-svg'))) await new Promise((done) => setTimeout(done, 2));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - start;
}"""


def measure(frame: Frame, run: str, title: str, views: dict[str, list[float]]) -> tuple[float, float]:
    """Seconds until the overview stands: the first time, and again; the times of views are added to theirs."""
    first = frame.evaluate(OPEN, [run, title]) / 1e3
    for tab in frame.query_selector_all(".lp-tabs [role=tab]"):
        view = (tab.get_attribute("id") or "").removeprefix("lp-tab-")
        if view not in ("compare", "ranks"):  # these ask the server for more
            views[view].append(frame.evaluate(SWITCH, view) / 1e3)
    frame.evaluate(SWITCH, "overview")
    frame.evaluate(OPEN, ["other", "other"])
    return first, frame.evaluate(OPEN, [run, title]) / 1e3


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("no browser: install chromium")
    traces = traces_at(options.traces)
    first: defaultdict[Path, list[float]] = defaultdict(list)
    again: defaultdict[Path, list[float]] = defaultdict(list)
    views: defaultdict[Path, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    turns = [(trace, turn) for trace in traces for turn in range(options.repeat)]
    random.shuffle(turns)
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        for trace, turn in turns:
            target = logs / f"{name_of(trace)}_{turn}" / trace.name
            target.parent.mkdir(parents=True)
            shutil.copy(trace, target)
        other = logs / "other" / "other.pt.trace.json"
        other.parent.mkdir()
        step = '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1, "dur": 9}'
        other.write_text(f'{{"traceEvents": [{step}]}}')
        with serving(logs, Path(folder) / "log.txt") as server, browsing() as seen:
            frame = tab_of(seen.page, server)
            frame.wait_for_selector("select[aria-label=run]")
            frame.evaluate(OPEN, ["other", "other"])
            for trace, turn in turns:
                one, two = measure(frame, f"{name_of(trace)}_{turn}", trace.name, views[trace])
                first[trace].append(one)
                again[trace].append(two)
    print(f"`{command(traces)}`\n\n{machine(PACKAGES)}; medians of {options.repeat} [quartiles]\n")
    rows = []
    for trace in traces:
        slowest = max(views[trace], key=lambda view: median(views[trace][view]))
        rows.append(
            [
                name_of(trace),
                f"{len(unpacked(trace)) / 1e6:.1f}",
                with_spread(first[trace], 2),
                with_spread(again[trace], 2),
                f"{slowest} {with_spread(views[trace][slowest], 2)}",
                f"{max(time for times in views[trace].values() for time in times):.2f}",
            ]
        )
    header = ["trace", "JSON, MB", "overview, first, s", "overview, again, s", "slowest view, s", "longest switch, s"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
