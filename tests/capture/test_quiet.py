"""What a user sees on stderr: the same with and without the callback, but for its own summary."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent(
    """
    import sys
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import CSVLogger
    from tests.training import Net, Plant, loader

    callbacks = []
    if sys.argv[1] == "with":
        from lightning_perf import PerfCallback

        schedule = {"skip_first": 2, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}
        callbacks = [PerfCallback(schedule=schedule, with_stack=True, module_depth=2)]
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, callbacks=callbacks, logger=CSVLogger("logs"), enable_progress_bar=False
    )
    trainer.fit(Net(Plant()), loader(Plant(), 12), loader(Plant(), 2))
    """
)


def stderr_of(folder: Path, which: str, *options: str) -> list[str]:
    """Lines of stderr, with what differs from run to run taken out."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KINETO", "PYTHONW"))}
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *options, "-c", SCRIPT, which],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    if which == "with":
        assert len(list(folder.rglob("*.pt.trace.json.gz"))) == 2
    return [re.sub(r"\d[\d.]*", "N", line) for line in done.stderr.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-W", "default", "-W", "error::ResourceWarning")], ids=["plain", "warnings"])
def test_nothing_but_the_summary_is_said(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Also of the libraries that are called: torch's profiler, kineto, numpy, plotly.

    Not so with ``profile_memory``: torch's C++ warns once of memory that was allocated before, and cannot be asked not
    to.
    """
    without = stderr_of(tmp_path / "without", "without", *options)
    said = stderr_of(tmp_path / "with", "with", *options)
    start = next(number for number, line in enumerate(said) if line.startswith("lightning-perf · "))
    assert said[start - 1] == ""
    end = next(number for number, line in enumerate(said) if number > start and "(tab Perf)" in line)
    rest = said[: start - 1] + said[end + 1 :]
    assert [line for line in rest if line not in without] == []
    assert not [line for line in said if "Warning" in line and line not in without]
