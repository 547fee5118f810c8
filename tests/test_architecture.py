"""The shape of the package: layers, light imports, public names, house rules that a machine can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_perf

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_perf"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS: list[set[str]] = [
    {"errors", "names", "units"},
    {"runinfo"},
    {"decode"},
    {"measure"},
    {"recommend"},
    {"comparison"},
    {"report"},
    {"pipeline"},
    {"cli", "callback", "tab"},
]
"""Left to right: a layer may import itself and what stands before it. Capture stands aside."""

DOORS = {"measure/analysis.py": {"report"}}
"""``Analysis.figures`` alone points right, and imports when it is asked: people have the analysis in hand."""

CAPTURE_MAY_IMPORT = {"errors", "names", "units", "runinfo", "capture"}
HEAVY = ("torch", "lightning", "pytorch_lightning")


def layer_of(module: Path) -> str:
    relative = module.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(module: Path, *, at_run_time: bool = True) -> set[str]:
    """Dotted names of everything a module imports; type-checking blocks are not run time."""
    tree = ast.parse(module.read_text())
    if at_run_time:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own_layers(module: Path) -> set[str]:
    names = [name.split(".") for name in imports(module, at_run_time=False) if name.startswith("lightning_perf.")]
    return {parts[1] for parts in names if (PACKAGE / parts[1]).exists() or (PACKAGE / f"{parts[1]}.py").exists()}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_left(module: Path) -> None:
    layer = layer_of(module)
    if layer == "__init__":
        return
    used = own_layers(module) - {layer}
    if layer == "capture":
        assert used <= CAPTURE_MAY_IMPORT
        return
    position = next(index for index, names in enumerate(LAYERS) if layer in names)
    allowed = set().union(*LAYERS[:position])
    doors = DOORS.get(module.relative_to(PACKAGE).as_posix(), set())
    assert used <= allowed | doors | ({"capture"} if layer == "callback" else set())


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_callback_imports_lightning_and_only_capture_torch(module: Path) -> None:
    roots = {name.split(".")[0] for name in imports(module)}
    if layer_of(module) != "callback":
        assert not roots & {"lightning", "pytorch_lightning"}
    if layer_of(module) not in ("callback", "capture"):
        assert "torch" not in roots


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_imports_the_package_root_for_more_than_its_version(module: Path) -> None:
    if module.name == "__init__.py":
        return
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "lightning_perf":
            modules = {path.stem for path in PACKAGE.iterdir()}
            assert {alias.name for alias in node.names} <= modules | {"__version__"}


@pytest.mark.parametrize(
    "statement",
    [
        "import lightning_perf",
        "import lightning_perf.cli",
        "import lightning_perf.pipeline",
        "import lightning_perf.report.console",
        "import lightning_perf; lightning_perf.analyze; lightning_perf.Analysis",
        "from lightning_perf.cli import main; main(['analyze', 'nowhere.json'])",
        "import lightning_perf.tab.loader",
        "import lightning_perf.tab.plugin",
    ],
)
def test_light_imports(statement: str) -> None:
    code = f"import sys; {statement}; print(sorted(set(sys.modules) & {set(HEAVY)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_imports_no_numpy() -> None:
    code = "import sys, lightning_perf.cli as cli; cli.main([]); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip().endswith("False")


@pytest.mark.parametrize("module", ["loader", "plugin"])
def test_the_tab_costs_the_start_of_tensorboard_next_to_nothing(module: str) -> None:
    """TensorBoard imports it whether somebody looks at the tab or not."""
    unwanted = {*HEAVY, "numpy", "plotly", "pandas", "tensorflow"}
    code = f"import sys, lightning_perf.tab.{module}; print(sorted(set(sys.modules) & {unwanted!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_public_names() -> None:
    assert sorted(lightning_perf.__all__) == [
        "Analysis",
        "CompareError",
        "Comparison",
        "ConfigError",
        "PerfCallback",
        "PerfError",
        "RecordError",
        "RunInfo",
        "Schedule",
        "TraceError",
        "__version__",
        "analyze",
        "compare",
    ]
    for name in lightning_perf.__all__:
        assert getattr(lightning_perf, name) is not None
        assert name in dir(lightning_perf)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lightning_perf.nonsense  # noqa: B018


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_house_rules(module: Path) -> None:
    assert module.stem not in {"utils", "common", "helpers", "misc"}
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        assert (node.end_lineno or 0) - node.lineno < 60, f"{node.name} is long enough to be two"
        if not node.name.startswith("_"):
            annotations = ast.unparse(node.args) + (ast.unparse(node.returns) if node.returns else "")
            assert "Any" not in annotations.replace("AnyRecord", ""), f"{node.name} has Any in its signature"


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'packages = ["lightning_perf"]' in text
    assert (PACKAGE / "py.typed").is_file()
