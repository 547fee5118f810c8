"""The TensorBoard plugin: routes to answers. GET only, names are looked up and never become a path."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

# TensorBoard is not typed.
from tensorboard import errors  # type: ignore[import-untyped]
from tensorboard.backend.http_util import Respond  # type: ignore[import-untyped]
from tensorboard.plugins import base_plugin  # type: ignore[import-untyped]
from werkzeug.wrappers import Request, Response

from lightning_perf.tab.assets import Asset, assets
from lightning_perf.tab.catalog import Catalog, roots_of
from lightning_perf.tab.jobs import Jobs
from lightning_perf.tab.service import Pages, ReportPages, Service, UnknownError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

PLUGIN_NAME: Final = "lightning_perf"
TAB_NAME: Final = "Perf"

WAIT_S: Final = 0.5
"""How long TensorBoard may wait until the first search for runs has found one."""

LARGEST_TRACE_BYTES: Final = 1 << 29
"""A trace is held in memory to be sent; no browser opens a larger one."""

_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_NOT_IN_A_NAME: Final = re.compile(r"[^\w.\-]+", re.ASCII)
_LONGEST_NAME: Final = 150

Answer: TypeAlias = Callable[[Request], Response]


class PerfPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # not typed
    """The tab "Perf".

    Args:
        context: of TensorBoard: its log directory.
        pages: makes the pages, those of ``report`` by default.
        jobs: analyses traces.
    """

    plugin_name = PLUGIN_NAME

    def __init__(self, context: base_plugin.TBContext, *, pages: Pages | None = None, jobs: Jobs | None = None) -> None:
        super().__init__(context)
        logdir = getattr(context.flags, "logdir", None) or context.logdir or ""
        spec = getattr(context.flags, "logdir_spec", None) or ""
        self._catalog = Catalog(roots_of(None if spec else logdir, spec))
        self._service = Service(spec or logdir, self._catalog, jobs or Jobs(), pages or ReportPages())

    def get_plugin_apps(self) -> dict[str, WSGIApplication]:
        """What is served, by its route."""
        answers: dict[str, Answer] = {
            "/runs": self._runs,
            "/page": self._page,
            "/ranks": self._ranks,
            "/compare": self._compare,
            "/trace": self._trace,
        }
        answers |= {route: _asset(asset) for route, asset in assets().items()}
        return {route: _app(answer) for route, answer in answers.items()}

    def is_active(self) -> bool:
        """Whether there is anything to show. The first search for it begins here, in the background."""
        if not self._catalog.found():
            self._catalog.refresh()
            self._catalog.wait_for_one(WAIT_S)
        return self._catalog.found()

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The entry module and the name of the tab. TensorBoard's reload button cannot reach into its frame."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name=TAB_NAME, disable_reload=True)

    def close(self) -> None:
        """End what runs in the background. The end of the process does that too."""
        self._service.close()

    def _runs(self, request: Request) -> Response:
        self._catalog.wait(WAIT_S)
        return _json(request, msgspec.json.encode(self._service.runs()))

    def _page(self, request: Request) -> Response:
        return _json(request, self._service.page(_needed(request, "run"), request.args.get("window")))

    def _ranks(self, request: Request) -> Response:
        return _json(request, self._service.ranks(_needed(request, "run")))

    def _compare(self, request: Request) -> Response:
        base, candidate = _needed(request, "base"), _needed(request, "candidate")
        given = request.args.get
        return _json(request, self._service.compare(base, given("base_window"), candidate, given("candidate_window")))

    def _trace(self, request: Request) -> Response:
        found, file = self._service.trace(_needed(request, "run"), request.args.get("window"))
        if file.size > LARGEST_TRACE_BYTES:
            text = f"This trace is too large to be sent ({file.size >> 20} MiB). Copy it from where it lies."
            return _respond(request, text, _TEXT, code=413)
        try:
            with found.files.local(file) as path:
                content = Path(path).read_bytes()
        except OSError as error:
            raise errors.NotFoundError("the trace file cannot be read any more") from error
        kind = "application/gzip" if file.name.endswith(".gz") else _JSON
        headers = [("Content-Disposition", f'attachment; filename="{_file_name(file.name)}"')]
        return _respond(request, content, kind, headers=headers)


def _app(answer: Answer) -> WSGIApplication:
    """A WSGI application that answers GET, and says so to everything else."""

    def application(request: Request) -> Response:
        if request.method != "GET":
            return _respond(request, "Method not allowed: only GET is.", _TEXT, code=405, headers=[("Allow", "GET")])
        try:
            return answer(request)
        except UnknownError as error:
            raise errors.NotFoundError(str(error)) from error

    return Request.application(application)


def _asset(asset: Asset) -> Answer:
    def answer(request: Request) -> Response:
        try:
            content = asset.content()
        except FileNotFoundError as error:
            raise errors.NotFoundError("a file of the tab is not installed; reinstall lightning-perf") from error
        encoding = "gzip" if asset.packed else None
        response: Response = Respond(
            request, content, asset.content_type, expires=asset.keep_s, content_encoding=encoding
        )
        return response

    return answer


def _needed(request: Request, name: str) -> str:
    value = request.args.get(name)
    if not value:
        raise errors.InvalidArgumentError(f"the parameter {name} is missing; /runs lists what it can be")
    return value


def _json(request: Request, content: bytes) -> Response:
    return _respond(request, content, _JSON)


def _respond(
    request: Request,
    content: bytes | str,
    content_type: str,
    *,
    code: int = 200,
    headers: list[tuple[str, str]] | None = None,
) -> Response:
    response: Response = Respond(request, content, content_type, code=code, headers=headers)
    return response


def _file_name(name: str) -> str:
    """A name that is safe in a header and on every disk, its end kept."""
    return _NOT_IN_A_NAME.sub("_", name)[-_LONGEST_NAME:].lstrip(".") or "trace"
