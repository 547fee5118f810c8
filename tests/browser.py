"""A real browser for tests: Debian's chromium, or any other, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

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

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: install chromium")


@dataclass
class Watched:
    """A page, and what must not happen on it."""

    page: object
    said: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def assert_quiet(self) -> None:
        """No error in the console, no exception, no request that left the machine."""
        assert self.said == []
        assert self.elsewhere == []


@contextmanager
def browsing(*, dark: bool = False, width: int = 1280, height: int = 720) -> Iterator[Watched]:
    """A page of a fresh browser with a profile of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
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


def views_of(page: object) -> list[str]:
    """The ids of the views that a page offers, in their order."""
    return [tab.get_attribute("id").removeprefix("lp-tab-") for tab in page.query_selector_all(".lp-tabs [role=tab]")]


def walk(page: object) -> dict[str, str]:
    """Click through every view; what each shows as text. A view must have drawn its figures, and show something."""
    texts = {}
    for view in views_of(page):
        page.click(f"#lp-tab-{view}")
        panel = page.locator(f"#lp-view-{view}")
        panel.wait_for(state="visible")
        page.wait_for_function(
            """id => {
              const panel = document.getElementById(id);
              const drawn = [...panel.querySelectorAll('.lp-plot')].every((plot) => plot.querySelector('.main-svg'));
              return drawn && panel.querySelector('.lp-block') !== null;
            }""",
            arg=f"lp-view-{view}",
            timeout=30_000,
        )
        assert page.get_attribute(f"#lp-tab-{view}", "aria-selected") == "true"
        texts[view] = panel.inner_text()
        assert texts[view].strip()
    return texts
