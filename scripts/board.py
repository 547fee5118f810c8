"""A TensorBoard with our tab, and a browser that looks at it: what tests, benchmarks and screenshots drive."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)) is not None),
    None,
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-sync",
]

OURS_ALONE = """
import sys
from tensorboard import default, program
from lightning_perf.tab.loader import PerfLoader

board = program.TensorBoard(plugins=[*default.get_static_plugins(), PerfLoader])
board.configure(["tensorboard", *sys.argv[1:]])
sys.exit(board.main())
"""
"""TensorBoard without what else is installed: torch-tb-profiler reads every trace when it starts."""


@dataclass
class Server:
    """Where a TensorBoard answers, and what it logs."""

    url: str
    log: Path

    def complaints(self) -> list[str]:
        """Warnings and errors in the log."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if re.match(r"[WEF]\d{4} |Traceback|.*[Ww]arning", line)]


@contextmanager
def serving(logdir: Path, log: Path, *, everything: bool = False) -> Iterator[Server]:
    """A TensorBoard of its own on the loopback, with all installed plugins if ``everything``."""
    program = ["-m", "tensorboard.main"] if everything else ["-c", OURS_ALONE]
    command = [sys.executable, *program, "--logdir", str(logdir), "--port", "0", "--host", "127.0.0.1"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield Server(_address(log, process), log)
        finally:
            process.terminate()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        found = re.search(r"http://\S+/", log.read_text(encoding="utf-8"))
        if found is not None:
            return found.group()
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"TensorBoard did not start:\n{log.read_text(encoding='utf-8')}")


def tab_of(page: Page, server: Server, query: str = "") -> Frame:
    """The frame of our tab."""
    page.goto(f"{server.url}{query}#lightning_perf")
    handle = page.wait_for_selector("iframe[src*='plugin_entry.html?name=lightning_perf']", state="attached")
    frame = handle.content_frame() if handle is not None else None
    if frame is None:
        raise SystemExit("TensorBoard does not show the tab")
    return frame


@dataclass
class Watched:
    """A page, and what must not happen on it."""

    page: Page
    said: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """Errors in the console, exceptions, and requests that would have left the machine."""
        return [*self.said, *self.elsewhere]


@contextmanager
def browsing(*, dark: bool = False, width: int = 1280, height: int = 720, scale: float = 1) -> Iterator[Watched]:
    """A page of a fresh browser with a profile of its own; ``scale`` device pixels for one of the page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                device_scale_factor=scale,
            )
            page = context.new_page()
            watched = Watched(page)
            page.on("console", lambda message: watched.said.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: watched.said.append(str(error)))
            page.on("request", lambda request: watched.elsewhere.append(request.url) if _leaves(request.url) else None)
            yield watched
        finally:
            browser.close()


def _leaves(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "blob") and parts.hostname not in ("127.0.0.1", "localhost")
