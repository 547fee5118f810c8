"""The routes, inside TensorBoard's own application: what is answered, and what is refused."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_perf.tab import assets, plugin
from lightning_perf.tab.catalog import Catalog
from tests.tab.server import BASE, Server, write_trace

Serve = Callable[..., Server]
DATA = ("/runs", "/page", "/ranks", "/compare", "/trace")
FILES = ("/index.js", "/static/app.js", "/static/app.css", "/static/plotly.min.js")
NAME = "rank0.1712195495519689000.pt.trace.json.gz"


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> Server:
    write_trace(tmp_path / "version_0/perf")
    made = serve(tmp_path)
    made.runs()
    return made


def test_tensorboard_shows_the_tab(server: Server) -> None:
    listing = server.client.get("/data/plugins_listing").json["lightning_perf"]
    assert listing["enabled"]
    assert listing["tab_name"] == "Perf"
    assert listing["loading_mechanism"] == {"type": "IFRAME", "module_path": f"{BASE}/index.js"}
    entry = server.client.get("/data/plugin_entry.html?name=lightning_perf")
    assert entry.status_code == 200
    assert "index.js" in entry.text


@pytest.mark.parametrize("logdir", ["empty", "nowhere"])
def test_an_empty_log_directory(serve: Serve, tmp_path: Path, logdir: str) -> None:
    (tmp_path / "empty").mkdir()
    server = serve(tmp_path / logdir)
    assert not server.client.get("/data/plugins_listing").json["lightning_perf"]["enabled"]
    answer = server.runs()
    assert answer["runs"] == []
    assert (answer["problem"] is None) == (logdir == "empty")
    assert answer["logdir"] == str(tmp_path / logdir)


def test_a_slow_log_directory_does_not_hold_tensorboard_up(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "_look", lambda _: time.sleep(2))
    started = time.monotonic()
    server = serve(tmp_path)
    assert time.monotonic() - started < 0.2
    assert not server.plugin.is_active()
    assert time.monotonic() - started < plugin.WAIT_S + 0.5
    assert server.get("/runs").json["scanning"]


def test_the_list_of_runs(server: Server) -> None:
    (run,) = server.runs()["runs"]
    (window,) = run["windows"]
    assert run | {"windows": []} == {"id": "version_0/perf", "name": "version_0", "recorded": False, "windows": []}
    assert window["id"] == NAME
    assert window["label"].startswith("rank 0 · 2024-04-0")


def test_a_page(server: Server) -> None:
    answer = server.settled("/page", run="version_0/perf", window=NAME)
    assert answer["state"] == "ready"
    assert answer["window"] == NAME
    assert answer["page"]["traces"] == [NAME]
    assert {state["stage"] for state in server.states} <= {"waiting", "reading", "measuring"}
    assert all(state["file"] == NAME for state in server.states)
    assert server.settled("/page", run="version_0/perf") == answer
    assert server.settled("/page", run="version_0/perf", window="") == answer
    assert server.pages.made == 1


def test_json_is_packed_for_who_can_unpack_it(server: Server) -> None:
    response = server.get("/runs", headers={"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert b"version_0" in gzip.decompress(response.data)


@pytest.mark.parametrize(("route", "kind"), [(route, "css" if "css" in route else "javascript") for route in FILES])
@pytest.mark.parametrize("packed", [True, False])
def test_files(server: Server, route: str, kind: str, packed: bool) -> None:
    response = server.get(route, headers={"Accept-Encoding": "gzip"} if packed else None)
    assert response.status_code == 200
    assert response.content_type == f"text/{kind}; charset=utf-8"
    content = gzip.decompress(response.data) if packed else response.data
    kept = {"/index.js": None, "/static/plotly.min.js": None}
    if route not in kept:
        assert content == (assets.PACKAGE / "report/view" / Path(route).name).read_bytes()
    assert ("max-age" in response.headers["Cache-Control"]) == ("plotly" in route)


def test_the_entry_module(server: Server) -> None:
    text = server.get("/index.js").text
    assert "export async function render()" in text
    assert re.search(r"plotly\.min\.js\?v=\d+\.\d+", text)
    assert "innerHTML" not in text
    assert "://" not in text


def test_plotly_comes_from_the_installed_package(server: Server) -> None:
    assert server.get("/static/plotly.min.js", v="7").text.lstrip().startswith("/**\n* plotly.js v")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("route", [*DATA, *FILES])
def test_only_get(server: Server, method: str, route: str) -> None:
    response = server.client.open(BASE + route, method=method)
    assert response.status_code == 405
    assert response.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    ("route", "parameters", "missing"),
    [
        ("/page", {}, "run"),
        ("/page", {"run": ""}, "run"),
        ("/ranks", {"window": NAME}, "run"),
        ("/trace", {}, "run"),
        ("/compare", {"candidate": "version_0/perf"}, "base"),
        ("/compare", {"base": "version_0/perf"}, "candidate"),
    ],
)
def test_a_missing_parameter(server: Server, route: str, parameters: dict[str, str], missing: str) -> None:
    response = server.get(route, **parameters)
    assert response.status_code == 400
    assert f"the parameter {missing} is missing" in response.text
    assert response.text.count("\n") == 0


@pytest.mark.parametrize(
    "name",
    [
        "version_1",
        "version_0",
        "../version_0/perf",
        "version_0/perf/",
        "version_0/./perf",
        "/etc",
        "../../../../etc",
        "..\\..\\windows",
        "%2e%2e/%2e%2e",
        "version_0/perf\0",
        "<img src=x onerror=alert(1)>\nX-Header: 1",
        "a" * 10_000,
    ],
)
@pytest.mark.parametrize("route", ["/page", "/ranks", "/trace", "/compare"])
def test_names_are_looked_up_and_nothing_else(server: Server, route: str, name: str) -> None:
    """An unknown run or window is 404, and its name comes back nowhere."""
    answers = [server.get(route, run=name, base=name, candidate=name)]
    if route in ("/page", "/trace"):
        answers.append(server.get(route, run="version_0/perf", window=name))
    if route == "/compare":
        known = {"base": "version_0/perf", "candidate": "version_0/perf"}
        answers.append(server.get(route, **known, candidate_window=name))
    for answer in answers:
        assert answer.status_code == 404
        assert answer.content_type.startswith("text/plain")
        assert answer.text.startswith("Not found: th")
        assert answer.text.count("\n") == 0
        assert "alert" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../plugin.py",
        "/static/%2e%2e/plugin.py",
        "/static/..%2fplugin.py",
        "/static//etc/passwd",
        "/static/....//plugin.py",
        "/static/..\\plugin.py",
        "/static/app.js%00.css",
        "/static/",
        "/static",
        "/static/page.py",
        "/plugin.py",
        "/trace/etc/passwd",
    ],
)
def test_no_path_leads_out(server: Server, path: str) -> None:
    response = server.client.get(BASE + path)
    assert response.status_code == 404
    assert "import" not in response.text


@pytest.mark.parametrize("name", ["a.pt.trace.json.gz", "a.pt.trace.json", 'ä "b"\n;.pt.trace.json'])
@pytest.mark.parametrize("packed", [True, False])
def test_a_trace_is_sent_as_it_is(serve: Serve, tmp_path: Path, name: str, packed: bool) -> None:
    path = write_trace(tmp_path / "run", name)
    server = serve(tmp_path)
    server.runs()
    response = server.get("/trace", {"Accept-Encoding": "gzip"} if packed else None, run="run", window=name)
    assert response.status_code == 200
    is_json = not name.endswith(".gz")
    assert response.content_type == ("application/json" if is_json else "application/gzip")
    assert response.headers.get("Content-Encoding") == ("gzip" if packed and is_json else None)
    content = gzip.decompress(response.data) if packed and is_json else response.data
    assert content == path.read_bytes()
    sent = re.fullmatch(r'attachment; filename="([\w.-]+)"', response.headers["Content-Disposition"])
    assert sent is not None
    assert sent[1].isascii()
    assert sent[1].endswith(name[-8:])


def test_a_trace_that_is_too_large_to_send(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "LARGEST_TRACE_BYTES", 10)
    response = server.get("/trace", run="version_0/perf")
    assert response.status_code == 413
    assert "too large" in response.text


def test_a_trace_that_is_gone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "version_0/perf" / NAME).unlink()
    assert server.get("/trace", run="version_0/perf", window=NAME).status_code == 404
    failed = server.settled("/page", run="version_0/perf", window=NAME)
    assert failed["state"] == "failed"
    assert "is not there any more" in failed["message"]


def test_several_log_directories(serve: Serve, tmp_path: Path) -> None:
    write_trace(tmp_path / "1/version_0")
    write_trace(tmp_path / "2")
    server = serve("", spec=f"a:{tmp_path / '1'},b:{tmp_path / '2'}")
    assert server.names() == ["a/version_0", "b"]
    assert server.settled("/page", run="b/.")["state"] == "ready"


def test_beside_the_tab_that_people_had() -> None:
    """torch-tb-profiler 0.4.3 is found by TensorBoard as ours is, under another name."""
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group="tensorboard_plugins")}
    if "lightning_perf" not in found:
        pytest.skip("the package was installed before it had this entry point; install it again")
    loader = found["lightning_perf"].load()
    assert loader.__module__ == "lightning_perf.tab.loader"
    if "torch_profiler" in found:
        assert found["torch_profiler"].load().plugin_name != plugin.PLUGIN_NAME
