"""What must hold of every window, whatever the trace: nothing is lost and nothing is counted twice."""

from __future__ import annotations

from collections import Counter

from lightning_perf.measure.analysis import DeviceWindow, Window


def ns(microseconds: float) -> int:
    """The integer nanoseconds that a figure was divided from."""
    return round(microseconds * 1000)


def assert_conserved(window: Window) -> None:
    """Assert that all parts add up to their wholes, to the nanosecond."""
    assert [step.start_us for step in window.steps] == sorted(step.start_us for step in window.steps)
    assert len({step.number for step in window.steps}) == len(window.steps)
    for step in window.steps:
        if step.phases_us:
            assert sum(map(ns, step.phases_us.values())) == ns(step.duration_us)
            assert all(ns(spent) > 0 for spent in step.phases_us.values())
        assert 0 <= ns(step.data_loading_us) <= ns(step.duration_us)
        assert set(step.device_busy_us) == {device.index for device in window.devices}
        assert all(0 <= ns(busy) <= ns(step.duration_us) for busy in step.device_busy_us.values())
    for device in window.devices:
        busy, idle = ns(device.busy_us), ns(device.idle_us)
        compute, communication = ns(device.compute_us), ns(device.communication_us)
        assert device.operations > 0
        assert busy + idle == ns(device.span_us)
        assert (device.gaps == 0) == (idle == 0)
        assert 0 <= ns(device.exposed_communication_us) <= communication <= busy
        assert max(compute, ns(device.copy_us)) <= busy <= ns(window.duration_us)
        assert compute + ns(device.exposed_communication_us) <= busy
        assert device.window is not None
        assert ns(device.window.busy_us) + ns(device.window.idle_us) == ns(device.window.duration_us)
        assert ns(device.window.busy_us) <= busy
        assert (device.window.gaps == 0) == (ns(device.window.idle_us) == 0)
        assert ns(device.window.largest_gap_us) * device.window.gaps >= ns(device.window.idle_us)
        assert device.window.steps in (0, sum(step.complete for step in window.steps))
        assert_explained(device.window)


def assert_explained(window: DeviceWindow) -> None:
    """Every idle nanosecond has one cause and one activity, in total and in every gap that is listed."""
    assert sum(map(ns, window.idle_causes_us.values())) == ns(window.idle_us)
    assert all(ns(spent) > 0 for spent in window.idle_causes_us.values())
    by_cause: Counter[str] = Counter()
    for share in window.idle_shares:
        by_cause[share.cause] += ns(share.idle_us)
    assert by_cause == {cause: ns(spent) for cause, spent in window.idle_causes_us.items()}
    assert len(window.largest_gaps) == min(20, window.gaps)
    assert [gap.duration_us for gap in window.largest_gaps] == sorted(
        (gap.duration_us for gap in window.largest_gaps), reverse=True
    )
    for gap in window.largest_gaps:
        assert sum(ns(share.idle_us) for share in gap.shares) == ns(gap.duration_us)
        assert (gap.cause, gap.activity) == (gap.shares[0].cause, gap.shares[0].activity)
    if window.largest_gaps:
        assert window.largest_gaps[0].duration_us == window.largest_gap_us
