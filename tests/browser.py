"""A real browser for tests: whether there is one, and a walk through every view."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.board import CHROMIUM

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: install chromium")


def views_of(page: Any) -> list[str]:
    """The ids of the views that a page offers, in their order."""
    return [tab.get_attribute("id").removeprefix("lp-tab-") for tab in page.query_selector_all(".lp-tabs [role=tab]")]


def walk(page: Any) -> dict[str, str]:
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
