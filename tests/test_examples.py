"""The examples run as a user runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

pytest.importorskip("torchvision", reason="the examples need the extra 'examples'")
pytest.importorskip("jsonargparse", reason="the examples need the extra 'cli'")
yaml = pytest.importorskip("yaml")


def run_example(script: str, *arguments: str | Path, cwd: Path) -> str:
    """What an example prints, on both streams."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The quickstart, slow and then fixed: its working directory and what it printed."""
    folder = tmp_path_factory.mktemp("quickstart")
    sizes = ("--photos", "24", "--batch-size", "4", "--epochs", "2")
    return folder, run_example("quickstart.py", "--compare", *sizes, cwd=folder)


def test_quickstart_prints_two_summaries_and_their_comparison(compared: tuple[Path, str]) -> None:
    _, printed = compared
    assert printed.count("lightning-perf · ResNet18 · 12 steps, ") == 2
    assert re.search(r"^version_0 -> this run · \d+ steps and \d+ steps$", printed, re.MULTILINE)
    assert "loader.num_workers 0 -> " in printed


def test_quickstart_prints_nothing_else(compared: tuple[Path, str]) -> None:
    _, printed = compared
    for word in ("Warning", "warn", "GPU available", "Trainer.fit", "deprecated", "profiler_start"):
        assert word not in printed


def test_quickstart_is_slow_because_of_its_data(compared: tuple[Path, str]) -> None:
    folder, _ = compared
    analysis = json.loads((folder / "lightning_logs/version_0/perf/analysis.json").read_text(encoding="utf-8"))
    phases = analysis["loop"]["phases_us"]
    assert max(phases, key=phases.get) == "data"


@pytest.mark.parametrize("version", ["version_0", "version_1"])
def test_quickstart_leaves_its_files(compared: tuple[Path, str], version: str) -> None:
    folder, _ = compared
    perf = folder / "lightning_logs" / version / "perf"
    assert {"run.json", "analysis.json"} <= {path.name for path in perf.iterdir()}
    assert len(list(perf.glob("rank0.*.pt.trace.json.gz"))) == 1
    assert list(perf.parent.glob("events.out.tfevents.*"))


def test_quickstart_keeps_photos_that_are_there(compared: tuple[Path, str]) -> None:
    folder, printed = compared
    assert "writing 24 photos" in printed
    before = {path: path.stat().st_mtime_ns for path in (folder / "demo_data").iterdir()}
    again = run_example("quickstart.py", "--fixed", "--photos", "24", "--batch-size", "12", "--epochs", "1", cwd=folder)
    assert "writing" not in again
    assert {path: path.stat().st_mtime_ns for path in (folder / "demo_data").iterdir()} == before


def test_cli_records_the_windows_of_its_configuration(tmp_path: Path) -> None:
    printed = run_example("cli.py", "fit", "--config", EXAMPLES / "config.yaml", "--data.samples", "1024", cwd=tmp_path)
    assert "lightning-perf · Regression · 64 steps, 12 of them traced" in printed
    assert len(list(tmp_path.rglob("rank0.*.pt.trace.json.gz"))) == 2


def test_cli_configuration_round_trips(tmp_path: Path) -> None:
    once = run_example("cli.py", "fit", "--config", EXAMPLES / "config.yaml", "--print_config", cwd=tmp_path)
    (tmp_path / "printed.yaml").write_text(once, encoding="utf-8")
    twice = run_example("cli.py", "fit", "--config", tmp_path / "printed.yaml", "--print_config", cwd=tmp_path)
    assert twice == once
    assert _callback(yaml.safe_load(once)) == _callback(
        yaml.safe_load((EXAMPLES / "config.yaml").read_text(encoding="utf-8"))
    )


def test_configuration_sets_every_argument() -> None:
    from inspect import signature

    from lightning_perf import PerfCallback

    config = yaml.safe_load((EXAMPLES / "config.yaml").read_text(encoding="utf-8"))
    assert list(_callback(config)["init_args"]) == list(signature(PerfCallback).parameters)


def _callback(config: dict) -> dict:
    (callback,) = config["trainer"]["callbacks"]
    assert callback["class_path"] == "lightning_perf.PerfCallback"
    return callback
