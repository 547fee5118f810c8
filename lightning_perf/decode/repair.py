"""One event's text made valid JSON again, where what was meant is clear.

With ``with_stack=True`` torch writes names of code files and functions as they are: quotes, backslashes and
control characters included. Rates of very short copies come out as ``nan`` or ``inf``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

_BRACKET: Final = re.compile(r"[{}\[\]]")
_NOT_A_NUMBER: Final = re.compile(r"(?<![\w.])(?:[+-]?(?:nan|inf|infinity)|n/a|undefined|none)(?![\w.])", re.IGNORECASE)

# A quote ends a text if what follows it can only follow a text: there is no other way to tell it from one inside.
_AFTER_KEY: Final = re.compile(r"\s*:")
_NEXT_KEY: Final = re.compile(r'\s*,\s*"[^"\\]*"\s*:')
_AFTER_VALUE: Final = re.compile(r'\s*,\s*"[^"\\]*"\s*:|\s*\}\s*(?:[,\]}]|$)')
_AFTER_ELEMENT: Final = re.compile(r'\s*,\s*["{\[\d-]|\s*\]')
_TEXT_PART: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|["\\\x00-\x1f]')


@dataclass(frozen=True, slots=True)
class Repaired:
    """Valid JSON, how much of the original it stands for, and what had to be changed for it."""

    text: str
    length: int
    texts_changed: int
    not_numbers: int


def repaired(text: str) -> Repaired | None:
    """The object at the start of a text as JSON, or None where it cannot be told what was meant.

    Only texts and names for what is not a number are repaired; the result may still be no JSON.
    """
    parts: list[str] = []
    brackets: list[str] = []
    start = texts_changed = not_numbers = 0
    while True:
        quote = text.find('"', start)
        end = _end_of_object(text, start, len(text) if quote < 0 else quote, brackets)
        if end is None or (quote < 0 and brackets):
            return None
        between, changed = _NOT_A_NUMBER.subn("null", text[start:end])
        not_numbers += changed
        parts.append(between)
        if not brackets:
            return Repaired("".join(parts), end, texts_changed, not_numbers)
        last = _end_of_text(text, quote + 1, between.rstrip()[-1:], brackets[-1])
        if last is None:
            return None
        fixed = _TEXT_PART.sub(_escaped, text[quote + 1 : last])
        texts_changed += fixed != text[quote + 1 : last]
        parts.append(f'"{fixed}"')
        start = last + 1


def _end_of_object(text: str, start: int, stop: int, brackets: list[str]) -> int | None:
    """Keep the open brackets up to ``stop``, or to the end of the object; None where they do not match."""
    for found in _BRACKET.finditer(text, start, stop):
        mark = found.group()
        if mark in "{[":
            brackets.append(mark)
        elif not brackets or brackets.pop() + mark not in ("{}", "[]"):
            return None
        if not brackets:
            return found.end()
    return stop


def _end_of_text(text: str, start: int, before: str, inside: str) -> int | None:
    """Where the quote is that ends the text which begins at ``start``, ``before`` it and ``inside`` a bracket."""
    follows = _AFTER_ELEMENT if inside == "[" else _AFTER_VALUE if before == ":" else _AFTER_KEY
    end = text.find('"', start)
    while end >= 0:
        backslashes = 0
        while end - backslashes > start and text[end - backslashes - 1] == "\\":
            backslashes += 1
        # An escaped quote is part of the text, unless the next key follows: then the backslash was the text's last.
        if (_NEXT_KEY if backslashes % 2 else follows).match(text, end + 1):
            return end
        end = text.find('"', end + 1)
    return None


def _escaped(part: re.Match[str]) -> str:
    found = part.group()
    return found if len(found) > 1 else json.dumps(found)[1:-1]
