"""The TensorBoard tab "Perf": finds runs and traces under the log directory and serves the pages of ``report``."""
