"""Take the pictures of the README: ``python scripts/screenshots.py [--logs FOLDER]``.

Runs the demo into a temporary folder (or takes the runs in FOLDER, the slow one first), starts a TensorBoard with our
tab on it, opens it and the report in a browser (chromium, headless), and writes PNG files to ``docs/images/``.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.board import CHROMIUM, Watched, browsing, serving, tab_of

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 1100
SCALE = 2
COLORS = 256
MARGIN = 16
MOST_BYTES = 250_000

DRAWN = """id => {
  const view = document.getElementById(`lp-view-${id}`);
  const plots = [...(view?.querySelectorAll('.lp-plot') ?? [])];
  return view?.querySelector('.lp-block') && plots.every((plot) => plot.querySelector('.main-svg'));
}"""
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def show(frame: Frame | Page, view: str) -> None:
    """Open a view and wait until it is drawn."""
    frame.click(f"#lp-tab-{view}")
    frame.wait_for_function(DRAWN, arg=view)
    frame.evaluate(SETTLED)


def choose(frame: Frame, run: str) -> None:
    """Open a run and wait for its page."""
    frame.wait_for_selector("select[aria-label=run]")
    frame.select_option("select[aria-label=run]", label=run)
    frame.wait_for_function("document.getElementById('lp-main').getAttribute('aria-busy') === null")
    frame.wait_for_selector(".lp-tabs")


def shoot(page: Page, frame: Frame | Page, name: str, last: str, *, top: float = 0, margin: float = MARGIN) -> None:
    """A picture of the page from ``top`` to a margin below the last element that ``last`` selects."""
    box = frame.locator(last).last.bounding_box()
    if box is None:
        raise SystemExit(f"{name}: {last} is not shown")
    clip = {"x": 0, "y": top, "width": WIDTH, "height": box["y"] + box["height"] + margin - top}
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    target = IMAGES / f"{name}.png"
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(target, optimize=True)
    size = target.stat().st_size
    print(f"{target.relative_to(ROOT)}  {picture.width} x {picture.height}  {size / 1e3:.0f} kB")
    if size > MOST_BYTES:
        raise SystemExit(f"{target.name} is larger than {MOST_BYTES / 1e3:.0f} kB")


def no_complaint(seen: Watched, more: Sequence[str] = ()) -> None:
    """End here if the browser or the server complained."""
    said = [*seen.complaints(), *more]
    if said:
        raise SystemExit("\n".join(said))


def picture_tab(logs: Path, log: Path) -> None:
    """The tab in TensorBoard: the slow run's overview and timeline, and both runs compared."""
    slow, fixed = (path.name for path in sorted(logs.iterdir())[:2])
    with serving(logs, log) as server, browsing(width=WIDTH, height=HEIGHT, scale=SCALE) as seen:
        frame = tab_of(seen.page, server)
        choose(frame, slow)
        show(frame, "overview")
        shoot(seen.page, frame, "tab-overview", "#lp-view-overview .lp-tiles")
        show(frame, "gaps")
        tabs = frame.locator(".lp-title").bounding_box()
        top = tabs["y"] - MARGIN / 2 if tabs is not None else 0
        shoot(seen.page, frame, "tab-gaps", "#lp-view-gaps tbody tr:nth-child(8)", top=top, margin=0)
        choose(frame, fixed)
        show(frame, "compare")
        shoot(seen.page, frame, "tab-compare", "#lp-view-compare .lp-is-figure", top=top)
        no_complaint(seen, server.complaints())


def picture_report(report: Path) -> None:
    """The report from disk, dark."""
    with browsing(dark=True, width=WIDTH, height=HEIGHT, scale=SCALE) as seen:
        seen.page.goto(report.as_uri())
        seen.page.wait_for_selector(".lp-tabs")
        show(seen.page, "overview")
        shoot(seen.page, seen.page, "report-dark", "#lp-view-overview .lp-tiles")
        no_complaint(seen)


def main() -> None:
    """Make the runs, unless they are given, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="runs to show, instead of the demo's")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("no browser: install chromium")
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logs = options.logs
        if logs is None:
            demo = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--compare"]
            subprocess.run(demo, cwd=folder, check=True)
            logs = folder / "lightning_logs"
        picture_tab(logs, folder / "log.txt")
        picture_report(min(logs.glob("*/perf/report.html")).resolve())


if __name__ == "__main__":
    main()
