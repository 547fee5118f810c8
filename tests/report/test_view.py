"""The pages' script: what can be tested without a browser, and what must not be in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

VIEW = Path(__file__).parents[2] / "lightning_perf" / "report" / "view"
TAB = Path(__file__).parents[2] / "lightning_perf" / "tab"
SCRIPTS = [VIEW / "app.js", *TAB.glob("*.js")]
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run scripts")

CHECKS = """
import assert from "node:assert/strict";
import { grouped, legendLines, matching, points, rowsText, sorted, written } from "./app.mjs";

const time = { key: "a_us", name: "a", numeric: true, factor: 1000, decimals: 3, grouped: true, adds_up: true };
const name = { key: "name", name: "name", numeric: false };
const step = { key: "step", name: "step", numeric: true, unit: "", factor: 1, decimals: 0, grouped: false };

assert.equal(written(1234567.8, time), "1,234.568");
assert.equal(written(null, time), "-");
assert.equal(written("<b>", name), "<b>");
assert.equal(written(1400, step), "1400");

const rows = [["b", 2, 1], ["a", null, 1], ["a10", 3, 2], ["a9", 1, 2]];
assert.deepEqual(sorted(rows, 1, true).map((row) => row[1]), [3, 2, 1, null]);
assert.deepEqual(sorted(rows, 1, false).map((row) => row[1]), [1, 2, 3, null]);
assert.deepEqual(sorted(rows, 0, false).map((row) => row[0]), ["a", "a9", "a10", "b"]);
assert.deepEqual(rows[0], ["b", 2, 1]);

const columns = [name, time, step];
assert.equal(matching(rows, columns, "A1 ", null).length, 1);
assert.equal(matching(rows, columns, "a", 2).length, 2);
assert.equal(matching(rows, [name, time], "", 2).length, 4);
assert.equal(matching([[null, 1]], [name, time], "x", null).length, 0);

const groups = grouped([["x", 1, 1], ["y", 5, 1], ["x", null, 2], ["x", 2, 2]], columns, "name");
assert.deepEqual(groups.rows, [["x", 3, 3], ["y", 1, 5]]);
assert.deepEqual(groups.columns.map((column) => column.name), ["name", "rows", "a"]);

const named = (...names) => names.map((one) => ({ name: one }));
assert.equal(legendLines(named("data", "forward"), 600), 1);
assert.equal(legendLines(named(...Array(8).fill("idle: data loading")), 600), 3);
assert.equal(legendLines([...named("a"), { name: "hidden", showlegend: false }, {}], 70), 1);

assert.deepEqual([rowsText(1, 1), rowsText(1200, 1200), rowsText(0, 12)], ["1 row", "1,200 rows", "0 of 12 rows"]);

assert.equal(points([1, 3, 2], 100, 24), "0,22 50,2 100,12");
assert.equal(points([5, 5], 100, 24), "0,22 100,22");
"""


@needs_node
def test_pure_functions(tmp_path: Path) -> None:
    shutil.copy(VIEW / "app.js", tmp_path / "app.mjs")
    (tmp_path / "checks.mjs").write_text(CHECKS)
    done = subprocess.run(["node", tmp_path / "checks.mjs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_node
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script: Path, tmp_path: Path) -> None:
    module = tmp_path / f"{script.stem}.mjs"
    shutil.copy(script, module)
    done = subprocess.run(["node", "--check", module], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_text_never_becomes_markup(script: Path) -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in script.read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_only_address_elsewhere_is_perfettos(script: Path) -> None:
    addresses = set(re.findall(r"https?://[^\s\"'`/]+", script.read_text()))
    assert addresses <= {"https://ui.perfetto.dev", "https://perfetto.dev", "http://www.w3.org"}
