"""As few blocks as a screen can show: which cuts to keep, and what most of a merged block is. Exact and vectorised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_perf.decode.trace import Int64s


def largest(values: Int64s, count: int) -> Int64s:
    """Places of the largest values, ascending; of equal values the first ones.

    Args:
        values: any numbers.
        count: how many places, or all if there are fewer.
    """
    if count <= 0 or values.size <= count:
        return np.arange(values.size if count > 0 else 0)
    least = np.partition(values, values.size - count)[values.size - count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - above.size]
    return np.sort(np.concatenate((above, equal)))


def shared(wanted: Sequence[int], *, most: int, total: int) -> list[int]:
    """How much each gets of a total: what it wants, up to a share that is the same for all who want more.

    Args:
        wanted: what each wants, at least 1.
        most: what nobody may exceed.
        total: what they get together, unless they are more than that: each gets at least 1.
    """
    granted = [0] * len(wanted)
    left, others = total, len(wanted)
    for place in sorted(range(len(wanted)), key=lambda place: wanted[place]):
        granted[place] = max(1, min(wanted[place], most, left // others))
        left, others = left - granted[place], others - 1
    return granted


def kept_cuts(length: Int64s, run: Int64s, limit: int) -> Int64s:
    """Where to cut a row of blocks into at most ``limit`` so that the longest runs and blocks stay by themselves.

    A cut counts as much as the longer of the blocks at its sides, or of the runs if it lies between two of them.

    Args:
        length: lengths of the blocks, at least one.
        run: the run that each block is part of, as ascending numbers from 0.
        limit: blocks to leave, at least 1.

    Returns:
        Places of the blocks that begin a merged one, the first block's among them.
    """
    of_run = np.bincount(run, weights=length).astype(np.int64)[run]
    long = np.where(run[1:] == run[:-1], np.maximum(length[1:], length[:-1]), np.maximum(of_run[1:], of_run[:-1]))
    return np.concatenate((np.zeros(1, dtype=np.int64), largest(long, limit - 1) + 1))


def leading(group: Int64s, code: Int64s, amount: Int64s) -> Int64s:
    """The code with the largest amount of each group; of equal ones the smallest.

    Args:
        group: numbers of groups from 0, none left out.
        code: what an amount is of, numbers from 0.
        amount: the amounts.
    """
    codes = int(code.max(initial=0)) + 1
    key = group * codes + code
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(changes(key))
    total = np.add.reduceat(amount[order], first) if first.size else amount[:0]
    group, code = np.divmod(key[first], codes)
    order = np.lexsort((code, -total, group))
    best: Int64s = code[order][changes(group[order])]
    return best


def highest(group: Int64s, values: Int64s) -> Int64s:
    """Places of the first largest value of each group; the groups' numbers ascend."""
    begins = changes(group)
    most = np.maximum.reduceat(values, np.flatnonzero(begins)) if values.size else values
    found = np.flatnonzero(values == most[np.cumsum(begins) - 1])
    return found[changes(group[found])]


def changes(values: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which values differ from the one before; the first one does."""
    return np.concatenate((np.ones(min(values.size, 1), dtype=np.bool_), values[1:] != values[:-1]))
