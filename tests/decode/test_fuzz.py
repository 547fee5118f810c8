"""Whatever a file holds: a window that adds up, or one ``TraceError``. ``benchmarks/fuzz.py`` tries 20,000 inputs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
INPUTS = 500


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fuzz

    yield fuzz
    for module in ("fuzz", "mutations", "printing"):
        sys.modules.pop(module, None)


def test_mutated_traces(fuzz) -> None:
    results = fuzz.run(INPUTS, seed=20261130, seconds=10.0, files=[], processes=1)
    assert [(number, kind, problem) for number, kind, found, problem in results if found == "failed"] == []
    counts = Counter(found for _, _, found, _ in results)
    assert counts["read"] > 50  # else nothing sound was left to measure
    assert counts["salvaged"] > 100
    assert counts["refused"] > 20


def test_a_number_makes_the_same_input_again(fuzz) -> None:
    assert [fuzz.made(number, 3) for number in range(20)] == [fuzz.made(number, 3) for number in range(20)]
