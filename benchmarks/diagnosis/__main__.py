"""Whether the advice is right: trainings with a known bottleneck, and healthy ones.

``python benchmarks/diagnosis`` prints two tables and what they come to. Each file of ``cases/`` is a training, slow and
fixed, with the rule that must come first. The slow one is diagnosed by PerfCallback with its default settings. What the
change brings is measured without it, by a stopwatch of its own: the mean time from one batch to the next after the
first three. Every run is a process of its own; in each round the cases are shuffled, and the runs of a case, which are
neighbours, because machines drift.

The error is that of the predicted saving, of the expected rule wherever it is ranked; medians of all rounds.

TraceML (``--traceml-python``) and gpuprof (``--gpuprof-python``) judge the same slow trainings, in environments of
their own: ``python -m venv traceml && traceml/bin/pip install torch lightning pillow traceml-ai==0.5.0``, and
``gpuprof[host,torch]==0.7.1`` likewise. Their verdict is right if it names the place of the bottleneck: see ``peers``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's CUDA build complains on machines without a GPU

from benchmarks.diagnosis import measured, peers, results, runs
from benchmarks.printing import command, machine


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", metavar="CASE", choices=measured.names(), help="only these cases")
    parser.add_argument("--repeat", type=int, default=3, help="rounds (%(default)s)")
    parser.add_argument("--traceml-python", metavar="PYTHON", help="Python of an environment that has TraceML")
    parser.add_argument("--gpuprof-python", metavar="PYTHON", help="Python of an environment that has gpuprof")
    parser.add_argument("--only-ours", action="store_true", help="no other tools, whatever is named")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep every outcome and analysis in a new folder")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: judge kept runs by today's rules")
    parser.add_argument("--in-a-process", nargs=3, metavar=("CASE", "HOW", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_a_process:
        name, how, folder = options.in_a_process
        run = peers.train if how in peers.PEERS else measured.measured
        print(f"\n{json.dumps(run(name, how, Path(folder)))}", flush=True)
        return

    named = {"traceml": options.traceml_python, "gpuprof": options.gpuprof_python}
    pythons = {tool: python for tool, python in named.items() if python and not options.only_ours}
    random.seed(0)
    if options.again is not None:
        rounds = runs.judged_again(options.again)
        repeat = max(len(outcomes["fixed"]) for outcomes in rounds.values())
        cases, pythons = list(rounds), {tool: "" for tool in peers.PEERS if any(tool in one for one in rounds.values())}
        print(f"{machine(['torch', 'lightning'])}; medians of {repeat} rounds\n")
        print(results.report({name: measured.case(name).EXPECTED for name in cases}, rounds, list(pythons)))
        return
    cases = options.cases or measured.names()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
    print(f"`{command()}`\n\n{machine(['torch', 'lightning'])}; medians of {options.repeat} rounds\n", flush=True)
    rounds = runs.run_all(cases, options.repeat, pythons, options.keep)
    print(results.report({name: measured.case(name).EXPECTED for name in cases}, rounds, list(pythons)))
    for line in [] if options.only_ours else peers.missing(pythons):
        print(f"\n{line}")


if __name__ == "__main__":
    main()
