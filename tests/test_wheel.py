"""What people install holds all that is needed: scripts and style sheets are not Python, and easily forgotten."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    package = ROOT / "lightning_perf"
    tracked = subprocess.run(["git", "ls-files", package], capture_output=True, text=True, cwd=ROOT).stdout.split()
    assert {path for path in tracked if not path.endswith(".pyc")} <= set(wheel.namelist())
    assert "lightning_perf/report/view/app.js" in wheel.namelist()


def test_tensorboard_finds_the_tab(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "[tensorboard_plugins]\nlightning_perf = lightning_perf.tab.loader:PerfLoader" in wheel.read(name).decode()
