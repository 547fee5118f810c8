"""The tab in a real TensorBoard and a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.browser import browsing, needs_browser, views_of, walk
from tests.report.test_html import HOSTILE
from tests.report.test_page import trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the checkout")

pytestmark = needs_browser

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
    url: str
    log: Path

    def assert_quiet(self) -> None:
        """No warning and no error of ours in the server's log."""
        lines = [line for line in self.log.read_text().splitlines() if "torch_tb_profiler" not in line]
        loud = [line for line in lines if re.match(r"[WEF]\d{4} |Traceback|.*[Ww]arning", line)]
        assert loud == []


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
        found = re.search(r"http://\S+/", log.read_text())
        if found is not None:
            return found.group()
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def tab_of(page, server: Server):
    """The frame of our tab."""
    page.goto(f"{server.url}#lightning_perf")
    handle = page.wait_for_selector("iframe[src*='plugin_entry.html?name=lightning_perf']", state="attached")
    return handle.content_frame()


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
        seen.assert_quiet()
    server.assert_quiet()


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
        seen.assert_quiet()
    server.assert_quiet()


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
        seen.assert_quiet()


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
        seen.assert_quiet()
    server.assert_quiet()


def test_names_stay_text(server: Server) -> None:
    with browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("select[aria-label=run]")
        choose(frame, "hostile")
        texts = walk(frame)
        assert "kernel </script><script>window.harmed = 1</script><img src=x onerror=" in texts["kernels"]
        assert frame.evaluate("window.harmed") is None
        assert frame.locator("img").count() == 0
        seen.assert_quiet()
    server.assert_quiet()


def test_an_empty_log_folder_says_how_to_record(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, tmp_path / "log.txt") as server, browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector("text=No run and no trace here yet")
        assert "Trainer(callbacks=[PerfCallback()])" in frame.inner_text("body")
        trace(logs)  # and one that comes later is found
        frame.wait_for_selector(".lp-verdict", timeout=30_000)
        seen.assert_quiet()
        server.assert_quiet()


def test_beside_the_tab_that_people_had(recorded_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch_tb_profiler", reason="torch-tb-profiler is not installed")
    with serving(recorded_run, tmp_path / "log.txt", everything=True) as server, browsing() as seen:
        frame = tab_of(seen.page, server)
        frame.wait_for_selector(".lp-verdict")
        assert seen.page.locator("text=PYTORCH_PROFILER").count() > 0
        seen.assert_quiet()
        server.assert_quiet()


def test_it_follows_tensorboards_dark_mode(recorded_run: Path, tmp_path: Path) -> None:
    with serving(recorded_run, tmp_path / "log.txt") as server, browsing() as seen:
        seen.page.goto(f"{server.url}?darkMode=true#lightning_perf")
        frame = seen.page.wait_for_selector("iframe[src*=lightning_perf]", state="attached").content_frame()
        frame.wait_for_selector(".lp-verdict")
        dark = seen.page.evaluate("document.body.classList.contains('dark-mode')")
        assert dark
        assert frame.get_attribute("html", "data-theme") == "dark"
        seen.assert_quiet()
