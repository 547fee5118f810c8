"""Files under a log directory, on this machine or wherever TensorBoard itself can read."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

_URL: Final = re.compile(r"[a-zA-Z][\w+.-]*(?:::\w+)*://")
_SURELY_NO_FOLDER: Final = re.compile(r"tfevents|\.(?:ckpt|pth?|json|gz|ya?ml|csv|txt|log|png|bin|safetensors)$")
"""Asking a remote file system whether something is a folder costs a request."""

_PIECE_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file and what tells that it has changed. ``mtime_ns`` is 0 where the file system does not tell."""

    path: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The last part of its path."""
        return re.split(r"[/\\]" if os.sep == "\\" else "/", self.path)[-1]


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that holds something: ``parts`` lead to it from the root of the walk."""

    parts: tuple[str, ...]
    files: tuple[StoredFile, ...]


class Files(Protocol):
    """How to reach files. Errors of single folders and files are skipped: they are not there, then."""

    def walk(self, root: str, wanted: re.Pattern[str]) -> Iterator[Folder]:
        """All folders below a root with the files whose names match, hidden ones left out. Yields often.

        A folder that holds none is yielded too, so that a long walk can be ended.

        Raises:
            OSError: the root cannot be listed. The message is for people.
        """

    def now(self, file: StoredFile) -> StoredFile | None:
        """The same file as it is now, None if it is gone."""

    def local(
        self, file: StoredFile, progress: Callable[[float], None] | None = None
    ) -> contextlib.AbstractContextManager[Path]:
        """A path on this machine with the file's content, for as long as the context lasts.

        ``progress`` is told the share of the file that was copied, 0 to 1, if it has to be.

        Raises:
            OSError: the file cannot be read. The message is for people.
        """


def files_of(root: str) -> Files:
    """How to reach what is below a log directory."""
    return RemoteFiles() if _URL.match(root) else LocalFiles()


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return _URL.match(path) is not None


class LocalFiles:
    """Files of this machine."""

    def walk(self, root: str, wanted: re.Pattern[str]) -> Iterator[Folder]:
        """As :class:`Files` says. Links are followed, each folder is visited once and by its own name if it has one."""
        try:
            os.scandir(root).close()
        except FileNotFoundError as error:
            raise OSError(f"{root}: there is no such folder yet; its runs show up once there is") from error
        except OSError as error:
            raise OSError(f"{root}: cannot be listed ({error.strerror})") from error
        visited: set[tuple[int, int]] = set()
        folders: list[tuple[str, ...]] = [()]
        links: list[tuple[str, ...]] = []
        while folders or links:
            parts = folders.pop() if folders else links.pop(0)
            path = os.path.join(root, *parts)  # noqa: PTH118 - Path would be the slowest part of a walk
            try:
                here = os.stat(path)  # noqa: PTH116 - the same
                if (here.st_dev, here.st_ino) in visited:
                    continue
                visited.add((here.st_dev, here.st_ino))
                with os.scandir(path) as listing:
                    entries = [entry for entry in listing if not entry.name.startswith(".")]
            except OSError:
                continue
            found = []
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir():
                        (links if entry.is_symlink() else folders).append((*parts, entry.name))
                    elif wanted.fullmatch(entry.name) and entry.is_file():
                        facts = entry.stat()
                        found.append(StoredFile(entry.path, facts.st_size, facts.st_mtime_ns))
            yield Folder(parts, tuple(found))

    def now(self, file: StoredFile) -> StoredFile | None:
        """As :class:`Files` says."""
        try:
            facts = Path(file.path).stat()
        except OSError:
            return None
        return StoredFile(file.path, facts.st_size, facts.st_mtime_ns)

    @contextlib.contextmanager
    def local(self, file: StoredFile, progress: Callable[[float], None] | None = None) -> Iterator[Path]:  # noqa: ARG002
        """As :class:`Files` says: the file itself."""
        yield Path(file.path)


class RemoteFiles:
    """Files that TensorBoard's own file layer reads: through fsspec, boto3 or TensorFlow, whichever is there."""

    @cached_property
    def _gfile(self) -> _GFile:
        from tensorboard.compat import tf  # type: ignore[import-untyped]

        gfile: _GFile = tf.io.gfile
        return gfile

    def walk(self, root: str, wanted: re.Pattern[str]) -> Iterator[Folder]:
        """As :class:`Files` says."""
        folders: list[tuple[tuple[str, ...], str]] = [((), root)]
        while folders:
            parts, path = folders.pop()
            try:
                names = [name.rstrip("/") for name in self._gfile.listdir(path)]
            except Exception as error:  # every file system has errors of its own
                if not parts:
                    raise OSError(f"{root}: TensorBoard cannot read this log directory ({_line(error)})") from error
                continue
            found = []
            for name in names:
                if not name or name.startswith("."):
                    continue
                inside = path + name if path.endswith("/") else f"{path}/{name}"
                if wanted.fullmatch(name):
                    file = self._stat(inside)
                    found += [file] if file is not None else []
                elif not _SURELY_NO_FOLDER.search(name) and self._is_folder(inside):
                    folders.append(((*parts, name), inside))
            yield Folder(parts, tuple(found))

    def now(self, file: StoredFile) -> StoredFile | None:
        """As :class:`Files` says, as of the last walk: asking takes a request."""
        return file

    @contextlib.contextmanager
    def local(self, file: StoredFile, progress: Callable[[float], None] | None = None) -> Iterator[Path]:
        """As :class:`Files` says: a copy, deleted afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="lightning-perf-"))
        try:
            target = folder / file.name
            try:
                self._copy(file, target, progress)
            except Exception as error:
                raise OSError(f"{file.path}: cannot be read ({_line(error)})") from error
            yield target
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _copy(self, file: StoredFile, target: Path, progress: Callable[[float], None] | None) -> None:
        with self._gfile.GFile(file.path, "rb") as source, target.open("wb") as copy:
            while piece := source.read(_PIECE_BYTES):
                copy.write(piece)
                if progress is not None and file.size:
                    progress(min(1.0, copy.tell() / file.size))

    def _stat(self, path: str) -> StoredFile | None:
        try:
            facts = self._gfile.stat(path)
        except Exception:  # noqa: BLE001 - every file system has errors of its own
            return None
        # Only TensorFlow's own file layer tells when a file was changed.
        return StoredFile(path, int(facts.length or 0), int(getattr(facts, "mtime_nsec", 0)))

    def _is_folder(self, path: str) -> bool:
        try:
            return bool(self._gfile.isdir(path))
        except Exception:  # noqa: BLE001 - every file system has errors of its own
            return False


class _Facts(Protocol):
    length: int | None


class _Source(Protocol):
    def read(self, n: int) -> bytes: ...


class _GFile(Protocol):
    """The part of ``tensorflow.io.gfile`` that is used here, which is not typed."""

    def listdir(self, path: str) -> list[str]: ...

    def isdir(self, path: str) -> bool: ...

    def stat(self, path: str) -> _Facts: ...

    def GFile(self, name: str, mode: str) -> contextlib.AbstractContextManager[_Source]: ...  # noqa: N802


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
