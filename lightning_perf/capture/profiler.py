"""torch.profiler for one window, from warm-up to saved file. Each window is one trace file."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd.profiler import profile as _Autograd  # noqa: N812 - the class behind every torch profiler
from torch.profiler import profile, record_function

from lightning_perf.names import CUT_LABEL, Stage

GZIP_LEVEL = 1
"""Level 9, which torch uses for ``.gz``, takes ten times as long."""


@dataclass(frozen=True)
class Recording:
    """What a window records besides operators, kernels and labels. Stacks and memory events cost the most."""

    shapes: bool = True
    stack: bool = False
    memory: bool = False


@dataclass(frozen=True)
class SavedWindow:
    """A stopped window: the trace as torch wrote it, and the path that :func:`compress` gives it."""

    raw: Path
    path: Path
    first_step: int
    last_step: int


def is_profiling() -> bool:
    """Whether a torch profiler runs in this process already. A second one would raise, or take its events."""
    enabled_here = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    return bool(enabled_here or torch.autograd.profiler._is_profiler_enabled)


class WindowProfiler:
    """Owns one ``torch.profiler.profile``.

    Steps are marked here and not by ``profile.step()``, so that a step ends with its epoch and the time between
    two epochs is in no step. Every method may be called again after an interrupt broke it off.
    """

    def __init__(self, recording: Recording, stage: Stage, rank: int) -> None:
        self._profile = profile(
            record_shapes=recording.shapes, with_stack=recording.stack, profile_memory=recording.memory
        )
        self._profile.preset_metadata_json("lightning_perf", json.dumps({"stage": stage, "rank": rank}))
        self._name = f"rank{rank}.{time.time_ns()}.pt.trace.json"
        self._steps: list[int] = []
        self._step: record_function | None = None
        self._stopped = False
        self._saved = False
        self.recording = False
        self.lost = False

    def warm_up(self) -> None:
        """Start the profiler without keeping what it sees."""
        with _quiet_kineto():
            self._profile.prepare_trace()

    def record(self) -> None:
        """Keep events from here on."""
        self._profile.start_trace()
        self.recording = True

    @property
    def steps(self) -> int:
        """How many steps were recorded or begun."""
        return len(self._steps)

    def begin_step(self, number: int) -> None:
        """Begin the range ``ProfilerStep#<number>``, by which every reader of traces knows a step."""
        self._steps.append(number)
        self._step = record_function(f"ProfilerStep#{number}")
        self._step.__enter__()  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        """End the range of the present step, if there is one."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def stop(self) -> None:
        """Stop the profiler; waits for the device to finish what was launched. A step still open is marked as cut."""
        if self._stopped:
            return
        if self._step is not None:
            with record_function(CUT_LABEL):
                pass
            self.end_step()
        if not self.recording:
            # A profiler that was only warmed up can be stopped only after it was started.
            self._profile.start_trace()
        if is_profiling() or self.lost:
            self._profile.stop_trace()
        self._stopped = True

    def switch_off(self) -> None:
        """The last resort where :meth:`stop` fails: a profiler that is still on crashes the interpreter at its exit."""
        if is_profiling() and not self._stopped and not self.lost:
            torch.autograd._disable_profiler()  # type: ignore[attr-defined]
            torch.autograd.profiler._run_on_profiler_stop()  # type: ignore[no-untyped-call]
        self._stopped = True

    def save(self, folder: Path) -> SavedWindow | None:
        """Write the trace of a stopped profiler, uncompressed. None if there is nothing to write.

        Raises:
            OSError: the folder cannot be made or written.
        """
        if not self._steps or not self.recording or self.lost:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        raw = folder / f".{self._name}.part"
        try:
            if not self._saved:
                raw.touch()  # raises with the reason where nothing can be written; torch may only leave out the file
                self._saved = True  # torch can save a trace once only
                self._profile.export_chrome_trace(str(raw))
            _check_whole(raw)
        except Exception:
            raw.unlink(missing_ok=True)
            raise
        return SavedWindow(raw, folder / f"{self._name}.gz", self._steps[0], self._steps[-1])

    def leftover(self) -> Callable[[], None]:
        """Frees what torch recorded, if it is still there: its profile is part of a cycle, and waits for the collector.

        Takes as long as writing the trace did, so it is not for the end of a window.
        """
        kept = weakref.ref(self._profile)

        def free() -> None:
            profile = kept()
            if profile is not None:
                profile.profiler = None

        return free

    def owns(self, started: object) -> bool:
        """Whether an autograd profiler is the one behind this window."""
        return started is getattr(self._profile, "profiler", None)


class Watch:
    """While a window is open, says so when somebody else starts a torch profiler, before it starts.

    Two at once end in a crash of the interpreter or in an empty trace for one of them.
    """

    _METHODS = ("_prepare_trace", "_start_trace")

    def __init__(self, window: WindowProfiler, on_foreign: Callable[[], None]) -> None:
        self._window = window
        self._on_foreign = on_foreign
        self._originals = {name: getattr(_Autograd, name) for name in self._METHODS if hasattr(_Autograd, name)}
        for name, original in self._originals.items():
            setattr(_Autograd, name, self._watched(original))

    def end(self) -> None:
        """Look away."""
        for name, original in self._originals.items():
            setattr(_Autograd, name, original)
        self._originals = {}

    def _watched(self, original: Callable[[object], None]) -> Callable[[object], None]:
        def watched(started: object) -> None:
            if not self._window.owns(started):
                self._on_foreign()
            original(started)

        return watched


def _check_whole(raw: Path) -> None:
    """A trace that torch wrote ends as JSON does; on a full disk torch writes a part of it, or none, and says nothing.

    Raises:
        OSError: it does not.
    """
    end = b""
    if raw.exists():
        with raw.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64))
            end = file.read().rstrip()
    if not end.endswith(b"}"):
        free = shutil.disk_usage(raw.parent).free >> 20
        raise OSError(errno.EIO, f"torch could not write the whole trace there ({free} MiB are free)", str(raw.parent))


class _StoppedError(OSError):
    """Compressing takes too long."""


def compress(saved: SavedWindow, stop: threading.Event | None = None) -> Path:
    """Compress a saved trace and give it its name. It appears there whole, or uncompressed if that fails.

    Setting ``stop`` from another thread ends compressing soon; the trace is then left uncompressed.

    Meant for another thread than the one that trains: zlib works without the interpreter lock.

    Raises:
        OSError: the trace can be neither compressed nor renamed.
    """
    part = saved.raw.with_name(f"{saved.raw.name}.gz")
    try:
        with saved.raw.open("rb") as source, gzip.open(part, "wb", compresslevel=GZIP_LEVEL) as target:
            while piece := source.read(1 << 20):
                if stop is not None and stop.is_set():
                    raise _StoppedError
                target.write(piece)
        part.replace(saved.path)
    except OSError:
        part.unlink(missing_ok=True)
        return saved.raw.replace(saved.path.with_suffix(""))
    saved.raw.unlink()
    return saved.path


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep kineto's own lines off the user's terminal: it reads its log level when it is first used."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]
