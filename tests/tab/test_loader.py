"""TensorBoard starts, whatever is missing."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.plugins.base_plugin import TBContext

from lightning_perf.tab import loader
from lightning_perf.tab.loader import PerfLoader


def context(folder: Path) -> TBContext:
    return TBContext(logdir=str(folder), flags=SimpleNamespace(logdir=str(folder), logdir_spec=""))


def test_the_plugin_is_made(tmp_path: Path) -> None:
    plugin = PerfLoader().load(context(tmp_path))
    assert plugin is not None
    assert plugin.plugin_name == "lightning_perf"
    plugin.close()


@pytest.mark.parametrize("flags", [None, SimpleNamespace()])
def test_a_context_may_lack_anything(flags: object) -> None:
    plugin = PerfLoader().load(TBContext(flags=flags))
    assert plugin is not None
    assert not plugin.is_active()
    plugin.close()


def test_what_is_missing_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "find_spec", lambda name: None if name == "plotly" else find_spec(name))
    monkeypatch.setattr(logging.getLogger("tensorboard"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        assert PerfLoader().load(context(tmp_path)) is None
    assert [record.getMessage() for record in caplog.records] == [
        "The tab Perf is not shown: plotly cannot be imported; install it: pip install --upgrade lightning-perf"
    ]


def test_a_plugin_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning_perf.tab.plugin", None)
    assert PerfLoader().load(context(tmp_path)) is None
