"""The tab in a real TensorBoard and a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.board import Server, browsing, serving, tab_of
from tests.browser import needs_browser, views_of, walk
from tests.report.test_html import HOSTILE
from tests.report.test_page import trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the checkout")

pytestmark = needs_browser


def choose(frame, run: str, shown: str = ".lp-tabs") -> None:
    frame.select_option("select[aria-label=run]", run)
    frame.wait_for_function("run => location.hash.includes(`run=${encodeURIComponent(run)}`)", arg=run)
    frame.wait_for_selector(shown)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory, recorded_run: Path) -> Path:
    """Our own run, every recorded trace, two ranks in one folder, and files that are broken in several ways."""
    folder = tmp_path_factory.mktemp("board")
    shutil.copytree(recorded_run / "version_0", folder / "version_0")
    shutil.copytree(recorded_run / "version_0", folder / "version_1")
    for path in sorted(SHARED.glob("*.gz")):
        name = "ddp" if path.name.startswith("ddp_") else path.name.split(".")[0]
        (folder / name).mkdir(exist_ok=True)
        shutil.copy(path, folder / name / path.name)
    for name in ("empty", "truncated", "hostile"):
        (folder / name).mkdir()
    (folder / "empty" / "a.pt.trace.json").touch()
    whole = trace(folder / "hostile", kernel=f"kernel {HOSTILE}", operator=f"operator {HOSTILE}" + "x" * 10_000)
    (folder / "truncated" / "b.pt.trace.json").write_bytes(whole.read_bytes()[:40])
    return folder


@pytest.fixture(scope="module")
def server(logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(logdir, tmp_path_factory.mktemp("server") / "log.txt") as running:
        yield running


def test_every_view_of_a_run(server: Server) -> None:
    with browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("select[aria-label=run]")
        choose(frame, "version_0")
        texts = walk(frame)
        assert {"overview", "loop", "data", "steps", "gaps", "operators", "kernels", "modules", "memory"} <= set(texts)
        assert "What differs" in texts["compare"]
        assert "body.0" in texts["modules"]
        assert re.fullmatch(r"rank0\.\d+\.pt\.trace\.json\.gz", frame.get_attribute("#lp-download", "download"))
        with seen.page.expect_download() as download:
            frame.click("#lp-download")
        assert download.value.path().stat().st_size > 1000
        assert seen.complaints() == []
    assert server.complaints() == []


@needs_traces
def test_every_view_of_every_recorded_trace(server: Server) -> None:
    with browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("select[aria-label=run]")
        runs = sorted({path.name.split(".")[0] for path in SHARED.glob("[!d]*.gz")})
        for run in [*runs, "ddp"]:
            choose(frame, run)
            expected = "ddp_rank1" if run == "ddp" else run
            frame.wait_for_function("name => document.querySelector('h1')?.textContent.includes(name)", arg=expected)
            texts = walk(frame)
            assert ("ranks" in texts) == (run == "ddp")
        assert seen.complaints() == []
    assert server.complaints() == []


def test_a_window_and_a_step_can_be_chosen(server: Server) -> None:
    with browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("select[aria-label=run]")
        choose(frame, "version_0")
        windows = frame.locator("select[aria-label='trace window'] option")
        assert windows.count() == 2
        assert all(re.search(r"rank 0 . steps \d+.\d+", text) for text in windows.all_inner_texts())
        first = windows.first.get_attribute("value")
        frame.select_option("select[aria-label='trace window']", first)
        frame.wait_for_function("document.querySelector('.lp-subtitle').textContent.includes('steps 4 to 6')")
        frame.select_option("select[aria-label=step]", "5")
        frame.click("#lp-tab-steps")
        assert frame.locator("#lp-view-steps tbody tr").count() == 1
        assert seen.complaints() == []


def test_broken_files_say_what_is_wrong_and_the_others_stay(server: Server) -> None:
    with browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("select[aria-label=run]")
        for run in ("empty", "truncated"):
            choose(frame, run, ".lp-state h2")
            assert frame.inner_text(".lp-state h2") == "This cannot be shown"
            assert ".pt.trace.json" in frame.inner_text(".lp-state p")
        choose(frame, "version_1")
        assert len(views_of(frame)) > 8
        assert seen.complaints() == []
    assert server.complaints() == []


@needs_traces
def test_a_large_trace_shows_how_far_it_is(tmp_path: Path) -> None:
    trace(tmp_path / "logs", "small.pt.trace.json")
    shutil.copy(SHARED / "mi300_owlv2_dataloader.pt.trace.json.gz", tmp_path / "logs" / "zz.pt.trace.json.gz")
    with serving(tmp_path / "logs", tmp_path / "log.txt") as server, browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("progress", timeout=30_000)
        assert re.search(r"(waiting|reading|measuring).* \d+\.\d s", frame.inner_text(".lp-state p"))
        assert "zz.pt.trace.json.gz" in frame.inner_text(".lp-state h2")
        frame.wait_for_selector(".lp-verdict", timeout=30_000)
        assert seen.complaints() == []


def test_names_stay_text(server: Server) -> None:
    with browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("select[aria-label=run]")
        choose(frame, "hostile")
        texts = walk(frame)
        assert "kernel </script><script>window.harmed = 1</script><img src=x onerror=" in texts["kernels"]
        assert frame.evaluate("window.harmed") is None
        assert frame.locator("img").count() == 0
        assert seen.complaints() == []
    assert server.complaints() == []


def test_an_empty_log_folder_says_how_to_record(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, tmp_path / "log.txt") as server, browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("text=No run and no trace here yet")
        assert "Trainer(callbacks=[PerfCallback()])" in frame.inner_text("body")
        trace(logs)  # and one that comes later is found
        frame.wait_for_selector(".lp-verdict", timeout=30_000)
        assert seen.complaints() == []
        assert server.complaints() == []


def test_beside_the_tab_that_people_had(recorded_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    with serving(recorded_run, tmp_path / "log.txt", everything=True) as server, browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector(".lp-verdict")
        assert seen.page.locator("text=PYTORCH_PROFILER").count() > 0
        assert seen.complaints() == []
        assert [line for line in server.complaints() if "lightning_perf" in line] == []


def test_it_follows_tensorboards_dark_mode(recorded_run: Path, tmp_path: Path) -> None:
    with serving(recorded_run, tmp_path / "log.txt") as server, browsing() as seen:
        frame = tab_of(seen.page, server, "?darkMode=true")
        frame.wait_for_selector(".lp-verdict")
        dark = seen.page.evaluate("document.body.classList.contains('dark-mode')")
        assert dark
        assert frame.get_attribute("html", "data-theme") == "dark"
        assert seen.complaints() == []
