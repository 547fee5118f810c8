"""Analyses in the background: shared, kept, begun anew when a file changes, and ended with the server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.measure.analysis import Window
from lightning_perf.pipeline import Progress, analyze_trace
from lightning_perf.tab.files import LocalFiles, StoredFile
from lightning_perf.tab.jobs import RETRY_S, Jobs
from lightning_perf.tab.replies import Failed, Working
from tests.processes import needs_proc, processes_with, wait_until
from tests.tab.server import write_trace
from tests.traces import write

FILES = LocalFiles()


def stored(path: Path) -> StoredFile:
    facts = path.stat()
    return StoredFile(str(path), facts.st_size, facts.st_mtime_ns)


def settled(jobs: Jobs, file: StoredFile) -> Window | Failed:
    wait_until(lambda: not isinstance(jobs.window(file, FILES), Working))
    done = jobs.window(file, FILES)
    assert not isinstance(done, Working)
    return done


@dataclass
class Hand:
    """An analysis that goes on when the test says so."""

    paths: list[str] = field(default_factory=list)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    tell: Progress | None = None
    error: Exception | None = None

    def __call__(self, path: Path, *, on_progress: Progress, on_start: Callable[[Callable[[], None]], None]) -> Window:
        self.paths.append(path.name)
        self.tell = on_progress
        on_start(self.go.release)
        assert self.go.acquire(timeout=30)
        if self.error is not None:
            raise self.error
        return Window(
            rank=None, trace=str(path), events=1, duration_us=1, steps=[], devices=[], memory=None, quality=[]
        )


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def jobs(hand: Hand) -> Iterator[Jobs]:
    made = Jobs(hand)
    yield made
    made.close()


def files(folder: Path, count: int) -> list[StoredFile]:
    return [stored(write(folder, "{}", f"{number}.json")) for number in range(count)]


def test_progress(tmp_path: Path, hand: Hand, jobs: Jobs) -> None:
    (file,) = files(tmp_path, 1)
    first = jobs.window(file, FILES)
    assert isinstance(first, Working)
    assert first.file == "0.json"
    wait_until(lambda: hand.tell)
    assert hand.tell is not None
    for stage, percent in (("reading", 43), ("measuring", None)):
        hand.tell(stage, percent)
        now = jobs.window(file, FILES)
        assert isinstance(now, Working)
        assert (now.stage, now.percent) == (stage, percent)
        assert now.elapsed_s >= first.elapsed_s
    hand.go.release()
    done = settled(jobs, file)
    assert isinstance(done, Window)
    assert done.trace == "0.json"


def test_who_asks_for_the_same_trace_shares_its_analysis(tmp_path: Path, hand: Hand, jobs: Jobs) -> None:
    (file,) = files(tmp_path, 1)
    clients = [threading.Thread(target=jobs.window, args=(file, FILES)) for _ in range(8)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    hand.go.release()
    settled(jobs, file)
    assert hand.paths == ["0.json"]


def test_two_at_once(tmp_path: Path, hand: Hand, jobs: Jobs) -> None:
    those = files(tmp_path, 4)
    for file in those:
        jobs.window(file, FILES)
    wait_until(lambda: len(hand.paths) == 2)
    waiting = [now.stage for file in those if isinstance(now := jobs.window(file, FILES), Working)]
    assert waiting == ["reading", "reading", "waiting", "waiting"]
    assert len(hand.paths) == 2
    for _ in those:
        hand.go.release()
    assert all(isinstance(settled(jobs, file), Window) for file in those)


@pytest.mark.parametrize("error", [TraceError("0.json: is no trace"), ValueError("a surprise")])
def test_a_trace_that_cannot_be_read_stays_so_until_it_changes(
    tmp_path: Path, hand: Hand, jobs: Jobs, error: Exception
) -> None:
    (file,) = files(tmp_path, 1)
    hand.error = error
    hand.go.release(2)
    failed = settled(jobs, file)
    assert isinstance(failed, Failed)
    assert str(error) in failed.message
    assert settled(jobs, file) == failed
    assert len(hand.paths) == 1
    hand.error = None
    write(tmp_path, "{ }", "0.json")
    assert isinstance(settled(jobs, stored(tmp_path / "0.json")), Window)


def test_a_file_that_could_not_be_reached_is_tried_again_later(tmp_path: Path, hand: Hand) -> None:
    now_s = [0.0]
    jobs = Jobs(hand, clock=lambda: now_s[0])
    (file,) = files(tmp_path, 1)
    hand.error = OSError("the network is down")
    hand.go.release(2)
    assert settled(jobs, file) == Failed(message="the network is down")
    now_s[0] = RETRY_S - 1
    assert settled(jobs, file) == Failed(message="the network is down")
    now_s[0] = RETRY_S + 1
    hand.error = None
    assert isinstance(jobs.window(file, FILES), Working)
    assert isinstance(settled(jobs, file), Window)
    jobs.close()


def test_a_file_that_is_being_written_has_one_analysis_at_a_time(tmp_path: Path, hand: Hand, jobs: Jobs) -> None:
    for size in range(1, 5):
        jobs.window(stored(write(tmp_path, " " * size, "0.json")), FILES)
    wait_until(lambda: hand.paths)
    hand.go.release(2)
    assert isinstance(settled(jobs, stored(tmp_path / "0.json")), Window)
    assert len(hand.paths) == 2  # as it was at first, and as it is now


def test_real_traces(tmp_path: Path) -> None:
    """In a process of their own, with the same result."""
    jobs = Jobs()
    good, cut, empty = write_trace(tmp_path), tmp_path / "cut.pt.trace.json.gz", tmp_path / "empty.pt.trace.json"
    cut.write_bytes(good.read_bytes()[:40])
    empty.touch()
    results = [settled(jobs, stored(path)) for path in (good, cut, empty)]
    assert isinstance(results[0], Window)
    assert results[0].steps == analyze_trace(good).steps
    for result, path in zip(results[1:], (cut, empty), strict=True):
        assert isinstance(result, Failed)
        assert result.message.startswith(f"{path}: ")
        assert "\n" not in result.message
    jobs.close()


@needs_proc
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    jobs = Jobs()
    paths = [tmp_path / f"{number}.pt.trace.json" for number in range(3)]
    for path in paths:
        os.mkfifo(path)  # nobody ever writes to it
        jobs.window(StoredFile(str(path), 0, 0), FILES)
    wait_until(lambda: all(processes_with(str(path)) for path in paths[:2]))
    jobs.close()
    assert not any(processes_with(str(path)) for path in paths)
    assert isinstance(jobs.window(StoredFile(str(paths[0]), 0, 0), FILES), Working)  # and nothing begins
    assert not [one.name for one in threading.enumerate() if one.name.startswith("lightning-perf")]


ENDS: Final = """
import sys, time
from lightning_perf.tab.files import LocalFiles, StoredFile
from lightning_perf.tab.jobs import Jobs
Jobs().window(StoredFile(sys.argv[1], 0, 0), LocalFiles())
sys.stdin.read(1)
"""


@needs_proc
def test_the_end_of_the_server_is_the_end_of_its_analyses(tmp_path: Path) -> None:
    """At once, and without a word."""
    path = tmp_path / "a.pt.trace.json"
    os.mkfifo(path)
    server = subprocess.Popen(
        [sys.executable, "-c", ENDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    wait_until(lambda: processes_with(str(path), but=server.pid))
    said, _ = server.communicate(b"x", timeout=30)
    assert (server.returncode, said) == (0, b"")
    assert not processes_with(str(path))
