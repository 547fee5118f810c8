"""Trace file -> :class:`~lightning_perf.decode.trace.Trace`: every torch version and vendor, sound or damaged."""
