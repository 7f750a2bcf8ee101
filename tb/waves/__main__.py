"""Waves of a block: ``python -m tb.waves --block NAME [--sim SIM] [--test NAME] [--seed N] [--from C --to C]``.

Runs one test of the block's bench with tracing and writes, beside the trace, a GTKWave save file and a timing picture.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tb.lib import registry, runner, top
from tb.lib.simulators import BuildError, MissingTool
from tb.run import report
from tb.waves import picture, save, signals
from tb.waves.trace import Trace


def arguments(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m tb.waves", description=__doc__.splitlines()[0])
    p.add_argument("--block", required=True)
    p.add_argument("--sim", default="", help="verilator or icarus (default: the first of the block's plan)")
    p.add_argument("--test", default="", help="default: the plan's `waves`, else its first test")
    p.add_argument("--seed", type=int, default=runner.DEFAULT_SEED)
    p.add_argument("--from", dest="first", type=int, help="first cycle of the picture (default: just before the first word)")
    p.add_argument("--to", dest="last", type=int, help=f"last cycle of the picture (default: {picture.SPAN} cycles)")
    p.add_argument("--picture", type=Path, help="file for the picture (default: waves.png beside the trace)")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    a = arguments(argv)
    try:
        plan = registry.find(a.block)
        test = a.test or plan.waves or plan.tests[0]
        out = runner.run(plan, a.sim or plan.simulators[0], tests=[test], seed=a.seed, waves=True)
    except (MissingTool, BuildError, KeyError, ValueError) as e:
        print(f"{a.block}: {e.args[0] if e.args else e}", file=sys.stderr)
        return 1
    bad = report(out)
    if out.waves is None:
        print(f"{a.block}: the simulation wrote no wave file; log: {out.folder / 'sim.log'}", file=sys.stderr)
        return 1
    print(f"waves:   {out.waves} ({out.waves.stat().st_size / 1024:.0f} KiB, {test})")
    try:
        describe(plan, out.waves, f"{plan.title} ({plan.name}): {test}, seed {a.seed}, {out.sim}", a.first, a.last, a.picture)
    except (MissingTool, ValueError) as e:
        print(f"{a.block}: {e}", file=sys.stderr)
        return 1
    return 1 if bad else 0


def describe(
    plan: registry.BlockPlan, waves: Path, title: str, first: int | None = None, last: int | None = None, image: Path | None = None,
) -> tuple[Path, Path]:
    """Save file and picture of a trace of the plan's bench; (save file, picture).

    Raises:
        MissingTool: a package of the extra `waves` is missing. ValueError: the trace is not of this bench, or the window is empty.
    """
    block = plan.make()
    trace = Trace(waves)
    view = signals.bench_view(block, top.plan_ports(block, plan.ports, plan.depth, plan.memory_bytes), trace.widths)
    for note in view.notes:
        print(f"note:    {note}")
    gtkw = save.write(view, waves, waves.with_name("waves.gtkw"))
    print(f"save:    {gtkw}\nopen:    gtkwave {gtkw}", flush=True)
    w = picture.window(view, trace, first, last)
    png = picture.draw(view, trace, w, image or waves.with_name("waves.png"), title)
    print(f"picture: {png} (cycles {w.first} to {w.last}; --from, --to)")
    return gtkw, png


if __name__ == "__main__":
    sys.exit(main())
