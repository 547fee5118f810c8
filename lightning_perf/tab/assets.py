"""The files that a browser loads: our own two, the entry module, and the plotly.js of the installed plotly."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1]
YEAR_S: Final = 365 * 24 * 3600

_JAVASCRIPT: Final = "text/javascript"
_VERSION: Final = b"PLOTLY_VERSION"
"""Stands in ``index.js`` for the version: a browser keeps plotly.js for as long as it stays the same."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file to serve. ``content`` reads it, packed by gzip if ``packed``; ``keep_s`` is how long a browser may."""

    content: Callable[[], bytes]
    content_type: str
    packed: bool = False
    keep_s: int = 0


def assets() -> dict[str, Asset]:
    """All files by their route. Nothing else is served, whatever a client asks for."""
    view = PACKAGE / "report" / "view"
    return {
        "/index.js": Asset(_index, _JAVASCRIPT),
        "/static/app.js": Asset((view / "app.js").read_bytes, _JAVASCRIPT),
        "/static/app.css": Asset((view / "app.css").read_bytes, "text/css"),
        "/static/plotly.min.js": Asset(_plotly, _JAVASCRIPT, packed=True, keep_s=YEAR_S),
    }


def _index() -> bytes:
    return (Path(__file__).parent / "index.js").read_bytes().replace(_VERSION, version("plotly").encode())


@cache
def _plotly() -> bytes:
    """Packed once: that takes a quarter of a second. Importing plotly would take more."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("plotly is not installed")
    return gzip.compress((Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes(), 6, mtime=0)
