"""A server that is closed after the test, and must not have logged a warning."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator

import pytest

from tests.tab import server as servers
from tests.tab.server import Server

NOT_FOUND = re.compile("path .* not found, sending 404", re.DOTALL)
"""TensorBoard says so of every path that no plugin has."""


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    open_ones: list[Server] = []
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not NOT_FOUND.fullmatch(record.getMessage()):
                said.append(record.getMessage())

    keep = Keep(logging.WARNING)
    logger = logging.getLogger("tensorboard")
    logger.addHandler(keep)

    def begin(*args: object, **settings: object) -> Server:
        open_ones.append(servers.serve(*args, **settings))
        return open_ones[-1]

    yield begin
    logger.removeHandler(keep)
    for one in open_ones:
        one.plugin.close()
    assert said == []
