"""One event's text made valid JSON again, where what was meant is clear.

With ``with_stack=True`` torch writes names of code files and functions as they are: quotes, backslashes and
control characters included. Rates of very short copies come out as ``nan`` or ``inf``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(r"""\s*(?:(?P<mark>[{}\[\]:,])|(?P<quote>")|(?P<word>[^\s{}\[\]:,"]+))""")
_WORD: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|true|false|null")
_NOT_A_NUMBER: Final = re.compile(r"[+-]?(nan|inf|infinity)|n/a|undefined|none", re.IGNORECASE)

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
    """The object at the start of a text as valid JSON, or None where it cannot be told what was meant."""
    parts: list[str] = []
    brackets: list[str] = []
    position = texts_changed = not_numbers = 0
    while token := _TOKEN.match(text, position):
        position = token.end()
        mark, quote, word = token.group("mark", "quote", "word")
        if mark:
            parts.append(mark)
            if not _tracked(brackets, mark):
                return None
            if not brackets:
                return Repaired("".join(parts), position, texts_changed, not_numbers)
        elif quote and brackets:
            end = _end_of_text(text, position, key=parts[-1] in "{," and brackets[-1] == "{", inside=brackets[-1])
            if end is None:
                return None
            fixed = _TEXT_PART.sub(_escaped, text[position:end])
            texts_changed += fixed != text[position:end]
            parts.append(f'"{fixed}"')
            position = end + 1
        elif _WORD.fullmatch(word or ""):
            parts.append(word)
        elif _NOT_A_NUMBER.fullmatch(word or ""):
            parts.append("null")
            not_numbers += 1
        else:
            return None
    return None


def _tracked(brackets: list[str], mark: str) -> bool:
    """Keep the open brackets; False where one is closed that is not open."""
    if mark in "{[":
        brackets.append(mark)
        return True
    if mark in "}]":
        return bool(brackets) and brackets.pop() + mark in ("{}", "[]")
    return bool(brackets)


def _end_of_text(text: str, start: int, *, key: bool, inside: str) -> int | None:
    """Where the quote is that ends the text which begins at ``start``."""
    follows = _AFTER_KEY if key else _AFTER_VALUE if inside == "{" else _AFTER_ELEMENT
    end = text.find('"', start)
    while end >= 0:
        backslashes = end - len(text[start:end].rstrip("\\")) - start
        # An escaped quote is part of the text, unless the next key follows: then the backslash was the text's last.
        if (_NEXT_KEY if backslashes % 2 else follows).match(text, end + 1):
            return end
        end = text.find('"', end + 1)
    return None


def _escaped(part: re.Match[str]) -> str:
    found = part.group()
    return found if len(found) > 1 else json.dumps(found)[1:-1]
