"""Figures in a real browser: names are text, nothing runs, and the timeline is there at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightning_perf.measure.analysis import Analysis
from lightning_perf.pipeline import analyze
from lightning_perf.report.figures import Figures
from tests.report.test_figures import (
    MS,
    TRACES,
    collective,
    device,
    everything,
    kernel,
    memory,
    module,
    operator,
    real,
    run,
    timeline,
    window,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: install chromium")

EVIL = [
    "</script><script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    '<a href="javascript:window.hurt=1">link</a>',
    "<b>bold</b> &lt;i&gt; &amp;",
    "\"quotes\" 'and' `ticks`",
    "%{x} %{customdata[0]}",
    "$x$ $\\alpha$",
    "tab\tnul\x00esc\x1b[31m line\nnext \u202eback",
    "<svg onload=window.hurt=1>" * 400,
]
SHOWN = [
    "</script><script>window.hurt = 1</script>",
    "<img src=x onerror='window.hurt = 1'>",
    '<a href="javascript:window.hurt=1">link</a>',
    "<b>bold</b> &lt;i&gt; &amp;",
    "\"quotes\" 'and' `ticks`",
    "%{x} %{customdata[0]}",
    "$x$ $\\alpha$",
    "tab nul esc [31m line next  back",
    "<svg onload=window.hurt=1>…<svg onload=window.hurt=1>",
]

DRAW = """async (text) => {
  const {data, layout} = JSON.parse(text), element = document.getElementById("figure");
  Plotly.purge(element);
  const before = performance.now();
  await Plotly.newPlot(element, data, layout, {responsive: true});
  return performance.now() - before;
}"""

HOVERS = """async () => {
  const element = document.getElementById("figure"), texts = [];
  for (const [curveNumber, trace] of element._fullData.entries()) {
    if (trace.hoverinfo === "skip" || !trace.x) continue;
    for (let pointNumber = 0; pointNumber < Math.min(9, trace.x.length); pointNumber++) {
      Plotly.Fx.hover(element, [{curveNumber, pointNumber}], [trace.xaxis + trace.yaxis]);
      await new Promise((done) => setTimeout(done, 60)); // plotly shows no more than one in 50 ms
      texts.push(...[...element.querySelectorAll(".hoverlayer text")].map((one) => one.textContent));
    }
  }
  return texts;
}"""
"""The texts of the hover labels of each trace's first points."""


def hostile() -> Analysis:
    """Every name that comes from outside is one of :data:`EVIL`."""
    loop = run(spans=EVIL)
    evil = window(
        devices=[device(index=EVIL[0], name=EVIL[1])],
        operators=[operator(name, 9.0 - place, 9.0 - place, EVIL[2]) for place, name in enumerate(EVIL)],
        kernels=[kernel(name, 9.0 - place) for place, name in enumerate(EVIL)],
        modules=[module(name.replace(".", ""), 5 * MS, source="frame") for name in EVIL],
        collectives=[
            msgspec.structs.replace(collective(name, 9.0 - place, 1.0), collective=None)
            for place, name in enumerate(EVIL)
        ],
        memory=memory(module=EVIL[1], operator=EVIL[0]),
        timeline=timeline(names=[EVIL[1], EVIL[0], EVIL[8]], stream=EVIL[3]),
    )
    return Analysis(run=loop.run, loop=loop.loop, windows=[evil])


@cache
def plotly_script() -> str:
    import plotly

    return (Path(plotly.__file__).parent / "package_data/plotly.min.js").read_text()


@contextmanager
def blank_page(width: int = 1280) -> Iterator[Any]:
    """A page with plotly and room for a figure; at the end nothing may have complained or been asked for."""
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: complaints.append(request.url))
            page.set_content("<!doctype html><div id=figure></div>")
            page.add_script_tag(content=plotly_script())
            yield page
        finally:
            browser.close()
    assert complaints == []


def drawn_texts(page: Any) -> list[str]:
    """What every text element of the figure says."""
    return page.eval_on_selector_all("#figure text", "all => all.map((one) => one.textContent)")


@needs_browser
def test_names_are_text_in_every_figure():
    figures = everything(hostile())
    assert set(figures) >= {"hooks", "device", "gaps", "operators", "kernels", "modules", "memory", "communication"}
    with blank_page() as page:
        for name, figure in figures.items():
            page.evaluate(DRAW, figure.to_json(engine="json"))
            texts = [text.replace("\xa0", " ") for text in drawn_texts(page)]
            if name in ("hooks", "operators", "kernels"):
                for shown in SHOWN[:-1]:
                    assert any(text.startswith(shown[:26]) for text in texts), (name, shown)
            hovers = page.evaluate(HOVERS)
            if name == "kernels":
                for shown in SHOWN[:-1]:
                    assert any(shown in text for text in hovers), shown
            assert page.evaluate("window.hurt") is None
            for tag in ("img", "script", "a", "b", "i", "foreignObject"):
                found = page.eval_on_selector_all(f"#figure {tag}", "all => all.map((one) => one.outerHTML)")
                assert [one for one in found if "modebar" not in one] == [], (name, tag)


@needs_browser
def test_modules_are_text_in_the_treemap():
    with blank_page() as page:
        page.evaluate(DRAW, Figures(hostile()).modules().to_json(engine="json"))
        texts = " ".join(drawn_texts(page))
        for shown in ("<b>bold</b> &lt;i&gt; &amp;", "$x$ $\\alpha$", "\"quotes\" 'and' `ticks`"):
            assert shown in texts
        page.mouse.move(300, 200)
        page.wait_for_selector(".hoverlayer text")
        assert page.evaluate("window.hurt") is None


@needs_browser
def test_nothing_is_cut_off_in_a_narrow_window():
    with blank_page(width=380) as page:
        for name, figure in everything(hostile()).items():
            if name == "modules":  # plotly makes the texts fit
                continue
            page.evaluate(DRAW, figure.to_json(engine="json"))
            beyond = page.eval_on_selector_all(
                "#figure text",
                """all => all.filter((one) => one.textContent && one.getBoundingClientRect().width)
                    .map((one) => [one.getBoundingClientRect(), one.textContent])
                    .filter(([box]) => box.left < 0 || box.right > 380)
                    .map(([box, text]) => [Math.round(box.left), Math.round(box.right), text])""",
            )
            assert beyond == [], name


@real
@needs_browser
@pytest.mark.parametrize("name", ["a100_ddp_dataloader", "mi300_owlv2_dataloader"])
def test_the_timeline_draws_at_once(name):
    figure = Figures(analyze(TRACES / f"{name}.pt.trace.json.gz")).gaps().to_json(engine="json")
    with blank_page() as page:
        took_ms = min(page.evaluate(DRAW, figure) for _ in range(5))
        assert took_ms < 500
