"""Facts of a run."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch

from lightning_perf.capture.environment import path_to_samples, samples_at

IMAGES = [torch.zeros(3, 32, 32)] * 16


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(16, 3), 16),
        ([torch.zeros(16, 3), torch.zeros(16)], 16),
        ((torch.zeros(16, 3), {"mask": torch.zeros(16)}), 16),
        ({"id": ["a", "b"], "x": torch.zeros(2, 5)}, 2),
        (UserDict(x=torch.zeros(4, 5)), 4),
        ({"scale": torch.tensor(1.0), "x": torch.zeros(4, 5)}, 4),
        ((IMAGES, [{"boxes": torch.zeros(2, 4)}] * 16), None),
        ((torch.zeros(16, 3), torch.zeros(4)), None),
        (torch.tensor(1.0), None),
        (None, None),
        ("text", None),
        ([], None),
    ],
)
def test_batch_size(batch: object, expected: int | None) -> None:
    path = path_to_samples(batch)
    assert (None if path is None else samples_at(batch, path)) == expected
