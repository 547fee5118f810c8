"""What TensorBoard imports at its start (entry point ``tensorboard_plugins``): as little as possible."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

# TensorBoard is not typed.
from tensorboard.plugins import base_plugin  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from lightning_perf.tab.plugin import PerfPlugin

_NEEDED = ("msgspec", "numpy", "plotly", "werkzeug")


class PerfLoader(base_plugin.TBLoader):  # type: ignore[misc]  # the same
    """Makes the plugin, or says once why TensorBoard has to do without it."""

    def load(self, context: base_plugin.TBContext) -> PerfPlugin | None:
        """The plugin, or None, with one warning, where something that it needs is not installed."""
        missing = [name for name in _NEEDED if find_spec(name) is None]
        try:
            if missing:
                raise ImportError(", ".join(missing))
            from lightning_perf.tab.plugin import PerfPlugin
        except ImportError as error:
            from tensorboard.util import tb_logging  # type: ignore[import-untyped]

            tb_logging.get_logger().warning(
                "The tab Perf is not shown: %s cannot be imported; install it: pip install --upgrade lightning-perf",
                error,
            )
            return None
        return PerfPlugin(context)
