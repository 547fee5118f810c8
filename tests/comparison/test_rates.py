"""How often the verdict is wrong: on pairs of the same code, and on pairs with a planted difference."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 200


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """benchmarks/compare.py, which makes the pairs and counts."""
    folder = ROOT / "benchmarks"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("benchmark_compare", folder / "compare.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def test_real_runs_of_the_same_code(benchmark: ModuleType) -> None:
    """At least 200 pairs of neighbouring pieces of real runs: at most 5 % are called different."""
    pairs = [pair for of_kind in benchmark.recorded(STEPS // 2).values() for pair in of_kind]
    rate = benchmark.claimed(pairs, 0.0)
    print(f"same code, {len(pairs)} real pairs of {STEPS // 2} steps: {rate:.1%} called different")
    assert len(pairs) >= 200
    assert rate <= 0.05


@pytest.mark.parametrize("slower", [0.0, 0.05, 0.2])
def test_simulated_runs(benchmark: ModuleType, slower: float) -> None:
    """200 steps a side: at most 5 % false claims; a slowdown of 5 % found in 90 %, of 20 % in 99 % of the pairs."""
    pairs = [pair for kind in benchmark.LIKE_THESE_MACHINES for pair in benchmark.simulated(kind, STEPS, 200, seed=7)]
    rate = benchmark.claimed(pairs, slower)
    print(f"{slower:.0%} slower, {len(pairs)} simulated pairs of {STEPS} steps: {rate:.1%} claimed")
    assert rate <= 0.05 if slower == 0 else rate >= {0.05: 0.9, 0.2: 0.99}[slower]
