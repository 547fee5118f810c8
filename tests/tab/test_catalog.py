"""Runs under log directories: several of them, new ones, and those that cannot be read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_perf.tab.catalog import Catalog, Listing, Root, roots_of
from lightning_perf.tab.files import Folder, LocalFiles
from tests.processes import wait_until
from tests.tab.server import record, write_trace


@pytest.mark.parametrize(
    ("logdir", "spec", "roots"),
    [
        ("/logs", "", [("/logs", None)]),
        ("s3://bucket/logs", "", [("s3://bucket/logs", None)]),
        ("", "", []),
        ("", "a:/logs/1,b:/logs/2", [("/logs/1", "a"), ("/logs/2", "b")]),
        ("", "/logs/1,/logs:2/b", [("/logs/1", "1"), ("/logs:2/b", "b")]),
        ("", "a:/1,a:/2,", [("/1", "a"), ("/2", "a (2)")]),
        ("", "gs://bucket/x,n:gs://bucket/y", [("gs://bucket/x", "x"), ("gs://bucket/y", "n")]),
    ],
)
def test_log_directories(logdir: str, spec: str, roots: list[tuple[str, str | None]]) -> None:
    assert roots_of(logdir, spec) == [Root(path, group) for path, group in roots]


def test_a_log_directory_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert roots_of("logs", "") == [Root(str(tmp_path / "logs"))]
    assert roots_of("~/logs", "") == [Root("/home/me/logs")]


@pytest.mark.parametrize(
    ("path", "base"),
    [("/logs/mine", "mine"), ("/logs/version_0/perf", "version_0"), ("/", "/"), ("memory://logs/", "logs")],
)
def test_the_name_of_a_log_directory(path: str, base: str) -> None:
    assert Root(path).base == base


@pytest.fixture
def catalogs() -> Iterator[list[Catalog]]:
    made: list[Catalog] = []
    yield made
    for one in made:
        one.close()


def listed(catalog: Catalog) -> Listing:
    assert catalog.wait(30)
    return catalog.listing()


def names(catalog: Catalog) -> list[str]:
    return [run.name for run in listed(catalog).runs]


def test_new_runs_are_seen_and_old_ones_go(tmp_path: Path, catalogs: list[Catalog]) -> None:
    catalogs.append(catalog := Catalog([Root(str(tmp_path))], rescan_s=0))
    assert names(catalog) == []
    assert not catalog.found()
    first = write_trace(tmp_path / "version_2")
    write_trace(tmp_path / "version_10")
    wait_until(lambda: names(catalog) == ["version_2", "version_10"])
    first.unlink()
    wait_until(lambda: names(catalog) == ["version_10"])
    assert catalog.found()


def test_looking_again_waits_for_its_time(tmp_path: Path, catalogs: list[Catalog]) -> None:
    now_s = [0.0]
    walks: list[str] = []

    class Counted(LocalFiles):
        def walk(self, root: str, wanted: object) -> Iterator[Folder]:
            walks.append(root)
            return super().walk(root, wanted)

    catalogs.append(catalog := Catalog([Root(str(tmp_path))], lambda _: Counted(), rescan_s=3, clock=lambda: now_s[0]))
    for at_s, walked in ((0, 1), (2.9, 1), (3, 2), (3, 2), (5.9, 2), (6, 3)):
        now_s[0] = at_s
        catalog.refresh()
        catalog.wait(30)
        wait_until(lambda walked=walked: len(walks) == walked)
        thread = catalog._thread
        assert thread is not None
        thread.join()


def test_several_log_directories(tmp_path: Path, catalogs: list[Catalog]) -> None:
    write_trace(tmp_path / "1/version_0/perf")
    write_trace(tmp_path / "2")
    roots = roots_of("", f"a:{tmp_path / '1'},{tmp_path / '2'},c:{tmp_path / '3'}")
    catalogs.append(catalog := Catalog(roots))
    listing = listed(catalog)
    assert [(run.id, run.name) for run in listing.runs] == [("a/version_0/perf", "a/version_0"), ("2/.", "2")]
    assert listing.problem is not None
    assert listing.problem.startswith(f"{tmp_path / '3'}: there is no such folder")


def test_records_are_read_once(tmp_path: Path, catalogs: list[Catalog], monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "perf", "rank0.1.pt.trace.json.gz")
    catalogs.append(catalog := Catalog([Root(str(tmp_path))], rescan_s=0))
    (run,) = listed(catalog).runs
    assert run.recorded
    assert [window.label for window in run.windows] == ["rank 0 · steps 4-6"]
    monkeypatch.setattr("lightning_perf.tab.catalog.facts", lambda *_: pytest.fail("it was read again"))
    write_trace(tmp_path / "more")
    wait_until(lambda: len(listed(catalog).runs) == 2)
    assert listed(catalog).runs[1] == run


def test_what_was_found_shows_before_everything_was_seen(tmp_path: Path, catalogs: list[Catalog]) -> None:
    write_trace(tmp_path / "a")
    more = threading.Event()

    class Slow(LocalFiles):
        def walk(self, root: str, wanted: object) -> Iterator[Folder]:
            for folder in super().walk(root, wanted):
                yield folder
                if folder.files:
                    assert more.wait(30)

    catalogs.append(catalog := Catalog([Root(str(tmp_path))], lambda _: Slow()))
    assert not catalog.wait(0)
    catalog.wait_for_one(30)
    listing = catalog.listing()
    assert (listing.scanning, [run.name for run in listing.runs]) == (True, ["a"])
    more.set()
    assert not listed(catalog).scanning


def test_a_search_that_fails_is_not_waited_for(
    tmp_path: Path, catalogs: list[Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr("lightning_perf.tab.catalog.run_of", lambda *_: 1 / 0)
    catalogs.append(catalog := Catalog([Root(str(tmp_path))]))
    assert not listed(catalog).scanning
