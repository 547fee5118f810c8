"""Records on disk: written whole, read back with validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_perf.errors import RecordError
from lightning_perf.measure.analysis import Analysis, read_analysis
from lightning_perf.runinfo import MemoryPeaks, rank_file, read_record, read_run, write_bytes, write_json


def test_a_record_comes_back(tmp_path: Path) -> None:
    record = MemoryPeaks(rss_bytes=1, allocated_bytes={"0": 2})
    write_json(tmp_path / "deep" / "peaks.json", record)
    assert read_record(tmp_path / "deep" / "peaks.json", MemoryPeaks) == record
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["peaks.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read .*; expected a RunInfo record"),
        (b"", "not a RunInfo record"),
        (b'{"schema": 1', "not a RunInfo record"),
        (b"[]", "not a RunInfo record"),
        (b'{"schema": 1}', "missing required field"),
        (b"\xff\xfe", "not a RunInfo record"),
    ],
)
def test_damage_is_one_clear_error(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordError, match=message) as caught:
        read_run(path)
    assert "\n" not in str(caught.value)


def test_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.json", b'{"run": null, "loop": null, "windows": [], "of_a_newer_version": [1, 2]}')
    assert read_analysis(tmp_path / "a.json") == Analysis(run=None, loop=None, windows=[])


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_bytes(path, "text")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["run.json"]


def test_names_of_ranks() -> None:
    assert [rank_file("run.json", rank) for rank in (0, 3)] == ["run.json", "run.rank3.json"]
