"""What a browser is sent: the same figures as the analysis, as text and numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lightning_perf.measure.analysis import Analysis
from lightning_perf.pipeline import analyze
from lightning_perf.report.blocks import Facts, Figure, Findings, Note, Page, Table, Tiles, View, plain, table
from lightning_perf.report.comparison_view import compare_page
from lightning_perf.report.page import page, ranks_page
from tests.traces import TraceBuilder

SHARED = Path(__file__).parents[3] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the recorded traces beside the checkout")

VIEWS = ["overview", "loop", "data", "steps", "gaps", "operators", "kernels", "modules", "memory"]


def trace(folder: Path, name: str = "rank0.1.pt.trace.json", **names: str) -> Path:
    folder.mkdir(exist_ok=True)
    kernel, operator = names.get("kernel", "gemm"), names.get("operator", "aten::mm")
    built = TraceBuilder().step(1, 0, 1_000_000).op(operator, 1_000, 2_000).launch(5, 1_100, 1_500)
    built.kernel(2_000, 500_000, name=kernel, correlation=5).step(2, 1_000_000, 2_000_000)
    built.op(operator, 1_001_000, 1_002_000).launch(6, 1_001_100, 1_001_500)
    built.kernel(1_400_000, 1_900_000, name=kernel, correlation=6)
    path = folder / name
    path.write_text(built.text())
    return path


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    return analyze(trace(tmp_path))


def blocks(view: View) -> list[object]:
    return [*view.blocks, *view.side, *view.below]


def view_of(shown: Page, name: str) -> View:
    return next(view for view in shown.views if view.id == name)


def block_of(view: View, kind: type, name: str | None = None):
    return next(one for one in blocks(view) if isinstance(one, kind) and (name is None or one.id == name))


def test_every_view_is_there_and_has_something(analysis: Analysis) -> None:
    shown = page(analysis)
    assert [view.id for view in shown.views] == VIEWS
    assert all(blocks(view) for view in shown.views)
    assert shown.trace == "rank0.1.pt.trace.json"
    assert [(step.number, step.start_us, step.end_us) for step in shown.steps] == [
        (1, 0.0, 1000.0),
        (2, 1000.0, 2000.0),
    ]


def test_numbers_of_tables_are_those_of_the_analysis(analysis: Analysis) -> None:
    steps = block_of(view_of(page(analysis), "steps"), Table)
    assert [column.key for column in steps.columns] == [
        "step",
        "complete",
        "duration_us",
        "device 0 busy_us",
        "start_us",
    ]
    assert steps.rows[1] == [2, "yes", 1000.0, analysis.windows[0].steps[1].device_busy_us["0"], 1000.0]
    gaps = block_of(view_of(page(analysis), "gaps"), Table, "gaps-table")
    assert gaps.zoom == "gaps"
    assert len(gaps.rows) == len(analysis.windows[0].devices[0].window.largest_gaps)


def test_a_run_and_no_run_say_what_is_missing(analysis: Analysis) -> None:
    shown = page(analysis)
    assert isinstance(view_of(shown, "loop").blocks[0], Note)
    assert "PerfCallback" in view_of(shown, "loop").blocks[0].text
    nothing = page(Analysis(run=None, loop=None, windows=[]))
    assert [view.id for view in nothing.views] == VIEWS
    assert nothing.trace is None


def test_one_note_where_figure_and_table_have_nothing(analysis: Analysis) -> None:
    modules = view_of(page(analysis), "modules")
    assert len(modules.blocks) == 1
    assert "module_depth" in modules.blocks[0].text


def test_figures_are_plotly_json_with_their_title_beside_them(analysis: Analysis) -> None:
    drawn = block_of(view_of(page(analysis), "kernels"), Figure)
    plot = msgspec.json.decode(drawn.plot)
    assert plot["data"]
    assert plot["layout"]["title"]["text"] == drawn.title
    assert drawn.aid


def test_names_of_a_trace_are_one_line_and_not_endless(tmp_path: Path) -> None:
    analysis = analyze(trace(tmp_path, kernel="a\n\x1b[31m" + "x" * 10_000))
    kernels = block_of(view_of(page(analysis), "kernels"), Table)
    assert kernels.rows[0][0].startswith("a  [31mxxx")
    assert len(kernels.rows[0][0]) == 500


def test_plain() -> None:
    assert plain("a\tb\u2028c") == "a b c"
    assert plain("x" * 20, 10) == "x" * 9 + "…"


def test_tables_leave_out_what_is_empty_and_group_only_what_repeats() -> None:
    rows = [
        {"name": "a", "kind": "k", "one": 1.0, "none": None},
        {"name": "b", "kind": "k", "one": 2.0, "none": 0.0},
        {"name": "c", "kind": "l", "one": 3.0, "none": None},
    ]
    made = table(
        "t",
        "T",
        [("name", "text"), ("kind", "text"), ("one", "time"), ("none", "time")],
        rows,
        group_by=["name", "kind"],
    )
    assert [column.key for column in made.columns] == ["name", "kind", "one"]
    assert made.group_by == ["kind"]
    assert isinstance(table("t", "T", [("name", "text")], []), Note)


def test_times_of_a_row_can_share_a_unit() -> None:
    rows = [{"name": "a", "before_us": 5e6, "difference_us": 3.0}]
    columns = [("name", "text"), ("before_us", "time"), ("difference_us", "time")]
    assert [column.unit for column in table("t", "T", columns, rows).columns] == ["", "ms", "µs"]
    assert [column.unit for column in table("t", "T", columns, rows, one_unit=True).columns] == ["", "ms", "ms"]


def test_the_whole_page_is_json(analysis: Analysis) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(page(analysis)), type=Page)
    assert decoded.title == page(analysis).title


def test_comparison_and_ranks(tmp_path: Path, analysis: Analysis) -> None:
    compared = compare_page(analysis, analysis)
    assert compared.id == "compare"
    assert isinstance(compared.blocks[0], Findings)
    assert isinstance(compared.blocks[1], Figure)
    ranks = ranks_page(analyze([trace(tmp_path, "a.pt.trace.json"), trace(tmp_path, "b.pt.trace.json")]))
    assert len(block_of(ranks, Table).rows) == 2


@needs_traces
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.gz")), ids=lambda path: path.name.split(".")[0])
def test_pages_of_recorded_traces(path: Path) -> None:
    analysis = analyze(path)
    shown = page(analysis)
    assert [view.id for view in shown.views] == VIEWS
    overview = view_of(shown, "overview")
    said = block_of(overview, Findings)
    saving = [one for one in analysis.findings if one.saving_us_per_step is not None]
    assert [card.number for card in said.cards if card.number] == list(range(1, len(saving) + 1))
    assert said.verdict
    assert block_of(overview, Tiles).tiles
    assert len(msgspec.json.encode(shown)) < 2_500_000


@needs_traces
def test_tiles_say_why_something_is_unknown() -> None:
    tiles = block_of(view_of(page(analyze(SHARED / "no_gpu_events.pt.trace.json.gz")), "overview"), Tiles).tiles
    busy = next(tile for tile in tiles if tile.label == "device busy")
    assert (busy.value, busy.note) == ("-", "no device works in this trace")


def test_facts_of_a_run_are_for_people() -> None:
    from lightning_perf.report.overview import setup_facts
    from lightning_perf.runinfo import DeviceFacts, MemoryPeaks
    from tests.records import run_info

    device = DeviceFacts(index=0, name="NVIDIA A100", memory_bytes=80 << 30)
    facts = dict(setup_facts(run_info(devices=[device], memory=MemoryPeaks())))
    assert facts["devices"] == "NVIDIA A100 (80.0 GiB)"
    assert facts["precision"] == "32-true"
    assert facts["torch.compile"] == "off"
    shown = page(Analysis(run=run_info(devices=[device], memory=MemoryPeaks()), loop=None, windows=[]))
    assert block_of(view_of(shown, "overview"), Facts).facts
