"""Colours: one for everything that is drawn, and told apart."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from lightning_perf.measure.timeline import WorkKind
from lightning_perf.names import CAUSES, PHASES
from lightning_perf.report.colors import CAUSE_PAINT, PHASE_PAINT, WORK_PAINT, tint

SAME_IN_ALL = [("data", "data_loading"), *((name, name) for name in PHASES if name in CAUSES)]


def test_nothing_is_left_out():
    assert list(PHASE_PAINT) == list(PHASES)
    assert list(CAUSE_PAINT) == list(CAUSES)
    assert list(WORK_PAINT) == list(get_args(WorkKind))


@pytest.mark.parametrize("paints", [PHASE_PAINT, CAUSE_PAINT, WORK_PAINT])
def test_colours_are_hex_and_no_two_look_the_same(paints):
    assert all(re.fullmatch("#[0-9A-F]{6}", paint.color) for paint in paints.values())
    assert len(set(paints.values())) == len(paints)


@pytest.mark.parametrize(("phase", "cause"), SAME_IN_ALL)
def test_a_phase_has_the_colour_of_its_cause(phase, cause):
    assert PHASE_PAINT[phase] == CAUSE_PAINT[cause]


def test_work_has_the_colour_of_its_phase():
    assert WORK_PAINT["compute"] == PHASE_PAINT["forward"]
    assert WORK_PAINT["copy"] == PHASE_PAINT["transfer"]
    assert WORK_PAINT["communication"] == CAUSE_PAINT["communication_host"]


def test_unknown_is_hatched_and_white():
    assert CAUSE_PAINT["unknown"].color == "#FFFFFF"
    assert CAUSE_PAINT["unknown"].pattern


@pytest.mark.parametrize(("share", "color"), [(1, "#D55E00"), (0.5, "#EAAE80"), (0, "#FFFFFF")])
def test_tint(share, color):
    assert tint("#D55E00", share) == color
