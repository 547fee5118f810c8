"""Files on this machine and elsewhere: what is found, what is skipped, what is copied and deleted."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_perf.tab.files import LocalFiles, RemoteFiles, StoredFile, files_of

ANY = re.compile(r".*\.json")


def found(root: Path | str, files: LocalFiles | RemoteFiles | None = None) -> dict[str, list[str]]:
    """Names of files by the folder that holds them."""
    folders = (files or files_of(str(root))).walk(str(root), ANY)
    return {
        "/".join(folder.parts): sorted(file.name for file in folder.files) for folder in folders if len(folder.files)
    }


def put(path: Path, content: bytes = b"{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_what_is_found(tmp_path: Path) -> None:
    for name in ("a.json", "b/c.json", "b/d/e.json", ".hidden/f.json", "b/.g.json", "b/h.txt"):
        put(tmp_path / name)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "broken.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    assert found(tmp_path) == {"": ["a.json"], "b": ["c.json"], "b/d": ["e.json"]}


def test_links_are_followed_once(tmp_path: Path) -> None:
    """A loop ends, and a folder with a name of its own has that one."""
    put(tmp_path / "logs/version_1/a.json")
    put(tmp_path / "elsewhere/b.json")
    put(tmp_path / "elsewhere/real.json")
    logs = tmp_path / "logs"
    (logs / "a_link").symlink_to(logs / "version_1")
    (logs / "version_1/up").symlink_to(logs)
    (logs / "outside").symlink_to(tmp_path / "elsewhere")
    (logs / "outside/around").symlink_to(logs / "outside")
    (logs / "version_1/file.json").symlink_to(tmp_path / "elsewhere/real.json")
    assert found(logs) == {"version_1": ["a.json", "file.json"], "outside": ["b.json", "real.json"]}


def test_a_folder_that_cannot_be_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a/a.json")
    put(tmp_path / "locked/b.json")
    scan = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr("os.scandir", scandir)
    assert found(tmp_path) == {"a": ["a.json"]}
    with pytest.raises(OSError, match=r"locked: cannot be listed \(Permission denied\)"):
        found(tmp_path / "locked")


def test_a_log_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="there is no such folder yet"):
        found(tmp_path / "nowhere")
    with pytest.raises(OSError, match="Not a directory"):
        found(put(tmp_path / "a.json"))


def test_a_file_as_it_is_now(tmp_path: Path) -> None:
    path = put(tmp_path / "a.json")
    files = LocalFiles()
    before = files.now(StoredFile(str(path), 0, 0))
    assert before is not None
    assert before.size == 2
    put(path, b"[1]")
    assert files.now(before) != before
    path.unlink()
    assert files.now(before) is None


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of a folder in fsspec's own memory."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe({"/logs/a.json": b"12345", "/logs/run/perf/b.json": b"{}", "/logs/.hidden/c.json": b"{}"})
    yield "memory://logs"
    system.rm("/logs", recursive=True)


def test_files_elsewhere(memory: str) -> None:
    assert found(memory) == {"": ["a.json"], "run/perf": ["b.json"]}
    assert found(f"{memory}/") == found(memory)


def test_a_file_elsewhere_is_copied_and_deleted(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("lightning_perf.tab.files._PIECE_BYTES", 2)
    files = RemoteFiles()
    folder = next(iter(files.walk(memory, ANY)))
    (file,) = folder.files
    assert file == StoredFile("memory://logs/a.json", 5, 0)
    assert files.now(file) == file
    shares: list[float] = []
    with files.local(file, shares.append) as path:
        assert path.read_bytes() == b"12345"
        assert path.name == "a.json"
    assert shares == [0.4, 0.8, 1.0]
    assert list(tmp_path.iterdir()) == []


def test_a_file_elsewhere_that_is_gone(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = StoredFile(f"{memory}/gone.json", 1, 0)
    with pytest.raises(OSError, match=r"gone\.json: cannot be read"), RemoteFiles().local(gone):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", ["nonsense://logs", "memory://nowhere"])
def test_what_tensorboard_cannot_read(root: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(OSError, match=f"^{root}: TensorBoard cannot read this log directory") as caught:
        found(root)
    assert "\n" not in str(caught.value)
