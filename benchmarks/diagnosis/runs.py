"""All runs of a benchmark, each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

from benchmarks.diagnosis import measured, peers
from benchmarks.diagnosis.measured import How, Outcome

PROGRAM = str(Path(__file__).with_name("__main__.py"))
AnyThing = TypeVar("AnyThing")

OUTCOMES = "outcomes.json"

TIMEOUT_S = 120
"""Longest time that one run may take."""

Rounds = dict[str, dict[str, list[Outcome]]]
"""Outcomes of all rounds by case and by what was done."""


def in_a_process(name: str, how: str, python: str = sys.executable, keep_as: Path | None = None) -> Outcome:
    """One run in a process of its own, whose files are thrown away but for the analysis, if it is to be kept."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = peers.command(how, python, [PROGRAM, "--in-a-process", name, how, folder], folder)
        try:
            done = subprocess.run(
                started,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
                env=os.environ | {"TMPDIR": folder},
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no answer in {TIMEOUT_S} s"}
        analysis = Path(folder, "perf", "analysis.json")
        if keep_as is not None and analysis.is_file():
            shutil.copy(analysis, keep_as)
        if how in peers.PEERS:
            return peers.outcome(how, Path(folder), done.stdout)
        try:
            return cast("Outcome", json.loads(done.stdout.splitlines()[-1]))
        except (IndexError, ValueError):
            return {"error": f"exit code {done.returncode}"}


def run_all(cases: Sequence[str], repeat: int, pythons: dict[str, str], keep: Path | None = None) -> Rounds:
    """All rounds, each in an order of its own; the runs of a case are neighbours, as machines drift.

    Other tools are asked once. What is done is saved as it goes on, if there is a folder to keep it in.
    """
    rounds: Rounds = defaultdict(lambda: defaultdict(list))
    for number in range(repeat):
        runs = [(name, how) for name in shuffled(cases) for how in shuffled(what_to_do(name))]
        runs += [(name, tool) for name in cases for tool in pythons if not number]
        for done, (name, how) in enumerate(runs):
            progress(f"round {number + 1} of {repeat}, {done + 1} of {len(runs)}: {name}, {how}")
            place = _analysis(keep, name, number) if keep is not None and how == "diagnosed" else None
            rounds[name][how].append(in_a_process(name, how, pythons.get(how, sys.executable), place))
            if keep is not None:
                (keep / OUTCOMES).write_text(json.dumps(rounds, indent=1), encoding="utf-8")
    progress("")
    return rounds


def judged_again(keep: Path) -> Rounds:
    """Kept runs of the cases that there are, with the findings that the rules have on them now."""
    kept: Rounds = json.loads((keep / OUTCOMES).read_text(encoding="utf-8"))
    rounds = {name: outcomes for name, outcomes in kept.items() if name in measured.names()}
    for name, outcomes in rounds.items():
        for number, outcome in enumerate(outcomes.get("diagnosed", [])):
            if _analysis(keep, name, number).is_file():
                outcome["findings"] = measured.judged_again(_analysis(keep, name, number))
    return rounds


def _analysis(keep: Path, name: str, number: int) -> Path:
    return keep / f"{name}.{number}.json"


def shuffled(things: Sequence[AnyThing]) -> list[AnyThing]:
    """The same in another order."""
    return random.sample(things, len(things))


def what_to_do(name: str) -> list[How]:
    """The runs of one round of a case."""
    return ["fixed", "diagnosed"] if measured.case(name).EXPECTED is None else ["slow", "fixed", "diagnosed"]


def progress(text: str) -> None:
    """Tell people at a terminal what is going on."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
