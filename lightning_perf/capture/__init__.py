"""training run -> trace files and run.json."""
