"""The report as a file: what is in it, and what a real browser makes of it, opened from disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lightning_perf.errors import PerfError
from lightning_perf.measure.analysis import Analysis, read_analysis
from lightning_perf.pipeline import analyze
from lightning_perf.report import html
from lightning_perf.report.html import Report
from scripts.board import browsing
from tests.browser import needs_browser, walk
from tests.report.test_page import trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the checkout")

HOSTILE = (
    "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'>\"'`&lt;b&gt;\x00\x1b\u2028%{x}"
)


def data_of(report: bytes) -> dict[str, object]:
    text = re.search(rb'<script type="application/json" id="data">(.*?)</script>', report, re.DOTALL)
    assert text is not None
    return json.loads(text.group(1))


def test_a_run_writes_its_report(recorded_run: Path) -> None:
    report = (recorded_run / "version_0" / "perf" / "report.html").read_bytes()
    data = data_of(report)
    assert [window["id"] for window in data["run"]["windows"]] == ["0", "1"]
    assert data["shown"] == "1"
    assert set(data["traces"]) == {"0", "1"}
    assert all((recorded_run / "version_0" / "perf" / name).is_file() for name in data["traces"].values())


def test_what_could_end_the_script_element_is_escaped(tmp_path: Path) -> None:
    report = Report(analyze(trace(tmp_path, kernel=HOSTILE, operator=HOSTILE))).html()
    assert report.count(b"</script>") == 3  # the data's, plotly's and the page's own
    assert data_of(report)["pages"]["0"]["views"]


def test_no_address_is_loaded(tmp_path: Path) -> None:
    head = Report(analyze(trace(tmp_path))).html().split(b"<script", 1)[0].decode()
    assert "default-src 'none'" in head
    assert not re.search(r"""(src|href)=["']?https?:""", head)
    assert "@import" not in head
    assert "url(" not in head


def test_save_says_what_is_wrong(tmp_path: Path) -> None:
    report = Report(analyze(trace(tmp_path)))
    assert report.save(tmp_path / "new" / "report.html").is_file()
    with pytest.raises(PerfError, match="cannot be written"):
        report.save(tmp_path)


def test_without_plotlys_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "find_spec", lambda _: None)
    with pytest.raises(PerfError, match="install plotly again"):
        html.plotly_script()


def test_text_is_the_summary(tmp_path: Path) -> None:
    assert "2 complete steps" in str(Report(analyze(trace(tmp_path))))


def test_an_analysis_of_nothing_has_a_report() -> None:
    assert data_of(Report(Analysis(run=None, loop=None, windows=[])).html())["pages"]["0"]


def test_a_report_has_the_latest_windows(tmp_path: Path) -> None:
    analysis = analyze([trace(tmp_path, f"{number}.pt.trace.json") for number in range(7)])
    data = data_of(html.html(analysis, windows=3))
    assert [window["id"] for window in data["run"]["windows"]] == list(data["pages"]) == ["4", "5", "6"]
    assert data["shown"] == "6"


@needs_browser
def test_every_view_of_a_run(recorded_run: Path) -> None:
    path = recorded_run / "version_0" / "perf" / "report.html"
    analysis = read_analysis(path.with_name("analysis.json"))
    with browsing() as seen:
        page = seen.page
        page.goto(path.as_uri())
        page.wait_for_selector(".lp-verdict")
        assert page.inner_text(".lp-verdict p") == analysis.findings[0].title
        texts = walk(page)
        assert "Net" in page.inner_text("h1")
        assert "num_workers" in texts["data"]
        assert "getitem" not in texts["overview"]  # no name of ours leaks in
        assert "body.0" in texts["modules"]
        assert seen.complaints() == []


@needs_browser
def test_controls(recorded_run: Path) -> None:
    path = recorded_run / "version_0" / "perf" / "report.html"
    with browsing() as seen:
        page = seen.page
        page.goto(path.as_uri())
        page.click("#lp-tab-steps")
        rows = page.locator("#lp-view-steps tbody tr")
        assert rows.count() == 3
        page.click("#lp-view-steps th button[data-key=step]")
        page.click("#lp-view-steps th button[data-key=step]")
        first = rows.first.inner_text().split()[0]
        page.select_option("select[aria-label=step]", first)
        assert rows.count() == 1
        assert f"step={first}" in page.url
        page.select_option("select[aria-label=step]", "")
        page.focus("#lp-tab-steps")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("#lp-tab-gaps", "aria-selected") == "true"
        page.click("#lp-tab-operators")
        page.fill("#lp-view-operators input[type=search]", "addmm")
        names = page.locator("#lp-view-operators tbody tr")
        assert 0 < names.count() < 20
        assert all("addmm" in text.lower() for text in names.all_inner_texts())
        page.select_option("select[aria-label='trace window']", "0")
        page.wait_for_selector("#lp-view-operators .main-svg")
        assert "window=0" in page.url
        page.click("text=Light / dark")
        assert page.get_attribute("html", "data-theme") == "dark"
        assert seen.complaints() == []


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(recorded_run: Path, width: int, dark: bool) -> None:
    path = recorded_run / "version_0" / "perf" / "report.html"
    with browsing(dark=dark, width=width) as seen:
        page = seen.page
        page.goto(path.as_uri())
        page.wait_for_selector(".lp-verdict")
        assert page.get_attribute("html", "data-theme") == ("dark" if dark else "light")
        for view in walk(page):
            page.click(f"#lp-tab-{view}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert seen.complaints() == []


@needs_browser
def test_on_paper_every_view_is_there(recorded_run: Path) -> None:
    path = recorded_run / "version_0" / "perf" / "report.html"
    with browsing() as seen:
        page = seen.page
        page.goto(path.as_uri())
        page.wait_for_selector(".lp-verdict")
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        panels = page.locator(".lp-view")
        assert panels.count() == 9
        assert all(panels.nth(place).is_visible() for place in range(9))
        widths = page.evaluate("[...document.querySelectorAll('.main-svg')].map((one) => one.clientWidth)")
        assert len(widths) > 9
        assert max(widths) <= 700
        assert not page.locator(".lp-tabs").is_visible()
        assert len(page.pdf()) > 50_000
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert panels.locator("visible=true").count() >= 1
        assert seen.complaints() == []


@needs_browser
def test_names_stay_text(tmp_path: Path) -> None:
    names = {"kernel": f"kernel {HOSTILE}", "operator": f"operator {HOSTILE}" + "x" * 10_000}
    path = Report(analyze(trace(tmp_path, **names))).save(tmp_path / "report.html")
    with browsing() as seen:
        page = seen.page
        page.goto(path.as_uri())
        page.wait_for_selector(".lp-verdict")
        texts = walk(page)
        assert "kernel </script><script>window.harmed = 1</script><img src=x onerror=" in texts["kernels"]
        assert "operator </script>" in texts["operators"]
        assert page.evaluate("window.harmed") is None
        assert page.locator("#app img").count() == 0
        assert seen.complaints() == []


@needs_browser
@needs_traces
def test_several_ranks_have_a_view_of_their_own(tmp_path: Path) -> None:
    analysis = analyze([SHARED / "ddp_rank0.pt.trace.json.gz", SHARED / "ddp_rank1.pt.trace.json.gz"])
    path = Report(analysis).save(tmp_path / "report.html")
    with browsing() as seen:
        seen.page.goto(path.as_uri())
        seen.page.wait_for_selector(".lp-verdict")
        assert "ddp_rank1" in walk(seen.page)["ranks"]
        assert seen.complaints() == []


@needs_browser
def test_a_report_compares_with_its_baseline(recorded_run: Path, tmp_path: Path) -> None:
    analysis = read_analysis(recorded_run / "version_0" / "perf" / "analysis.json")
    path = Report(analysis, baseline=analysis).save(tmp_path / "report.html")
    with browsing() as seen:
        seen.page.goto(f"{path.as_uri()}#view=compare")
        seen.page.wait_for_selector("#lp-view-compare .main-svg")
        text = seen.page.inner_text("#lp-view-compare")
        assert "No difference that these steps can show" in text
        assert "step time, median" in text
        assert seen.complaints() == []
