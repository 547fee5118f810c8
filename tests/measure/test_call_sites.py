"""Operators by the user's function that called them, tables written out beside them. Times in nanoseconds."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from lightning_perf.decode.reader import read_trace
from lightning_perf.measure.call_sites import NO_STACKS, is_user_code
from lightning_perf.measure.tally import OTHERS
from lightning_perf.measure.window import measure_trace
from tests.measure.laws import ns
from tests.measure.test_backward import Passes
from tests.traces import BACKWARD, MAIN, TraceBuilder


class Stacks(Passes):
    """A trace with Python stacks."""

    def frame(self, name: str, start: int, end: int, *, tid: int = MAIN):
        return self.range(name, start, end, cat="python_function", tid=tid)


def sites(trace, **options):
    """Calls and host time of every operator, by name and call site."""
    rows = measure_trace(trace, by_call_site=True, **options).operators
    return {(row.name, row.call_site): (row.calls, ns(row.self_us)) for row in rows}


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("train.py(82): train_step", True),
        ("model/net.py(12): forward", True),
        ("code/train.py(1): <module>", True),
        ("/home/me/lightning/train.py(3): main", True),
        ("C:\\work\\train.py(3): main", True),
        ("<ipython-input-3-0a1b>(7): <cell line: 1>", True),
        ("/tmp/ipykernel_17/2357.py(7): step", True),
        ("torchvision/models/resnet.py(89): forward", True),  # a model like the user's
        ("torch/nn/modules/linear.py(116): forward", False),
        ("lightning/pytorch/loops/fit_loop.py(3): run", False),
        ("pytorch_lightning/trainer/trainer.py(3): fit", False),
        ("lightning_perf/capture/marks.py(32): enter", False),
        ("/opt/env/lib/python3.11/site-packages/timm/layers.py(5): forward", False),
        ("/usr/lib/python3/dist-packages/x.py(5): forward", False),
        ("/usr/lib/python3.11/random.py(5): sample", False),
        ("C:\\env\\Lib\\site-packages\\x.py(3): main", False),
        ("/tmp/torchinductor_root/ob/cob.py(132): call", False),
        ("contextlib.py(75): inner", False),
        ("multiprocessing/queues.py(5): put", False),
        ("<built-in method conv2d of type object at 0x7f92>", False),
        ("<frozen abc>(117): __instancecheck__", False),
        ("<string>(2): __init__", False),
        ("nn.Module: Linear_0", False),
        ("torch/nn/modules/module.py(1915): __getattr__", False),
        ("", False),
    ],
)
def test_which_frames_are_the_users(frame, expected):
    assert is_user_code(frame) is expected


def test_the_innermost_function_of_the_user(tmp_path):
    trace = Stacks().frame("train.py(1): <module>", 0, 1000).frame("torch/nn/modules/module.py(1): _call", 10, 500)
    trace.frame("nn.Module: Net_0", 11, 490).frame("net.py(7): forward", 20, 400)
    trace.frame("torch/nn/modules/linear.py(116): forward", 30, 100).frame("<built-in function linear>", 40, 90)
    trace.op("aten::linear", 50, 80).op("aten::addmm", 60, 70)
    trace.op("aten::relu", 200, 230).op("aten::relu", 600, 605)
    trace.op("aten::relu", 700, 790, tid=99)  # another thread has no frames
    assert sites(trace.trace(tmp_path)) == {
        ("aten::linear", "net.py(7): forward"): (1, 20),
        ("aten::addmm", "net.py(7): forward"): (1, 10),
        ("aten::relu", "net.py(7): forward"): (1, 30),
        ("aten::relu", "train.py(1): <module>"): (1, 5),
        ("aten::relu", None): (1, 90),
    }


@pytest.mark.parametrize("tid", [MAIN, BACKWARD])
def test_the_backward_pass_has_the_call_site_of_the_forward_pass(tmp_path, tid):
    """Also on CPUs, where it runs inside the function that called backward()."""
    trace = Stacks().frame("train.py(1): step", 0, 1000).frame("net.py(7): forward", 10, 100)
    trace.forward("aten::relu", 3, 20, 50).forward("Mine", 4, 60, 70).frame("torch/_tensor.py(1): backward", 190, 900)
    trace.backward("evaluate: MineBackward", 4, 200, 300, tid=tid).backward("MineBackward", 4, 210, 290, tid=tid)
    trace.frame("ops.py(30): backward", 220, 280, tid=tid).op("aten::mul", 230, 270, tid=tid)
    trace.backward("ReluBackward0", 3, 310, 340, tid=tid).op("aten::threshold", 320, 330, tid=tid)
    trace.op("AccumulateGrad", 350, 360, tid=tid)
    assert sites(trace.trace(tmp_path)) == {
        ("aten::relu", "net.py(7): forward"): (1, 30),
        ("Mine", "net.py(7): forward"): (1, 10),
        ("evaluate: MineBackward", "net.py(7): forward"): (1, 20),
        ("MineBackward", "net.py(7): forward"): (1, 40),
        ("aten::mul", "ops.py(30): backward"): (1, 40),
        ("ReluBackward0", "net.py(7): forward"): (1, 20),
        ("aten::threshold", "net.py(7): forward"): (1, 10),
        ("AccumulateGrad", "train.py(1): step" if tid == MAIN else None): (1, 10),
    }


def test_with_shapes_and_a_limit(tmp_path):
    trace = Stacks().frame("a.py(1): f", 0, 100).frame("b.py(1): g", 100, 200)
    for start, size in ((10, 2), (30, 3), (110, 2), (150, 2)):
        trace.range("aten::relu", start, start + 10 + start // 10, cat="cpu_op", **{"Input Dims": [[size]]})
    decoded = read_trace(trace.write(tmp_path), inputs=True)
    rows = measure_trace(decoded, by_shape=True, by_call_site=True).operators
    assert [(row.shapes, row.call_site, row.calls, ns(row.self_us)) for row in rows] == [
        ("[[2]]", "b.py(1): g", 2, 21 + 25),
        ("[[3]]", "a.py(1): f", 1, 13),
        ("[[2]]", "a.py(1): f", 1, 11),
    ]
    assert sites(decoded, limit=1) == {("aten::relu", "b.py(1): g"): (2, 46), (OTHERS, None): (2, 24)}
    assert [row.call_site for row in measure_trace(decoded).operators] == [None]


def test_without_stacks_the_window_says_so(tmp_path):
    decoded = TraceBuilder().op("aten::relu", 0, 10).trace(tmp_path)
    window = measure_trace(decoded, by_call_site=True)
    assert [row.call_site for row in window.operators] == [None]
    (message,) = [note.message for note in window.quality if note.code == NO_STACKS]
    assert message == f"no Python stacks in {decoded.path}; record with with_stack=True"
    assert NO_STACKS not in {note.code for note in measure_trace(decoded).quality}
    decoded = Stacks().op("aten::relu", 0, 10).frame("torch/x.py(1): f", 0, 10).trace(tmp_path)
    assert NO_STACKS not in {note.code for note in measure_trace(decoded, by_call_site=True).quality}


USER_FILE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.last(activation(self.first(x)))

def activation(x):
    return x.tanh()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.randn(6)

def train(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    for batch in loader:
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
"""


def test_a_real_recording(tmp_path, monkeypatch):
    """Two steps of a training in a file of its own."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    (tmp_path / "perf_user_net.py").write_text(USER_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import perf_user_net as user

    net, loader = user.Net(), torch.utils.data.DataLoader(user.Data(), batch_size=4)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as recording:
        user.train(net, loader)
    del sys.modules["perf_user_net"]
    recording.export_chrome_trace(str(tmp_path / "t.json"))
    rows = measure_trace(read_trace(tmp_path / "t.json"), by_call_site=True, limit=None).operators
    found = {(row.name, row.call_site): row.calls for row in rows}
    forward = f"perf_user_net.py({line_of('def forward')}): forward"
    activation = f"perf_user_net.py({line_of('def activation')}): activation"
    train = f"perf_user_net.py({line_of('def train')}): train"
    item = f"perf_user_net.py({line_of('def __getitem__')}): __getitem__"
    wanted = {
        ("aten::randn", item): 8,
        ("aten::stack", train): 2,  # torch's collate function, called by the loop over the loader
        ("aten::addmm", forward): 4,
        ("aten::tanh", activation): 2,
        ("AddmmBackward0", forward): 4,
        ("aten::mm", forward): 6,  # the gradients of two weights and one input
        ("TanhBackward0", activation): 2,
        ("aten::tanh_backward", activation): 2,
        ("SumBackward0", train): 2,
        ("torch::autograd::AccumulateGrad", train): 8,
        ("aten::add_", train): 8,
    }
    assert {key: found.get(key) for key in wanted} == wanted
    by_name = {row.name: row.calls for row in measure_trace(read_trace(tmp_path / "t.json"), limit=None).operators}
    calls: Counter[str] = Counter()
    for (name, _), count in found.items():
        calls[name] += count
    assert calls == by_name


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(USER_FILE.splitlines(), 1) if text in line)
