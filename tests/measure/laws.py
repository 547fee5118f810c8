"""What must hold of every window, whatever the trace: nothing is lost and nothing is counted twice."""

from __future__ import annotations

from lightning_perf.measure.analysis import Window


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
