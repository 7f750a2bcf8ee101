"""Waves of a block: ``python -m tb.waves --block NAME [--sim SIM] [--test NAME] [--seed N] [--from C --to C]``.

Runs one test of the block's bench with tracing and writes, beside the trace, a GTKWave save file and a timing picture.
``python -m tb.waves --trace FILE [--config NAME]``: the save file for the trace of a whole system (``hccl run --waves FILE``).
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spec.params import config
from tb.lib import registry, runner, top
from tb.lib.simulators import BuildError, MissingTool
from tb.run import report
from tb.waves import picture, save, signals
from tb.waves.trace import Trace


def arguments(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m tb.waves", description=__doc__.splitlines()[0])
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--block", help="block, or a group: its first block")
    what.add_argument("--trace", type=Path, help="trace of a whole system: only its save file is written")
    p.add_argument("--config", default="tiny", help="with --trace: configuration of the system")
    p.add_argument("--sim", default="", help="verilator or icarus (default: the first of the block's plan)")
    p.add_argument("--test", default="", help="default: the plan's `waves`, else its first test")
    p.add_argument("--seed", type=int, default=runner.DEFAULT_SEED)
    p.add_argument("--from", dest="first", type=int, help="first cycle of the picture (default: just before the first word)")
    p.add_argument("--to", dest="last", type=int, help=f"last cycle of the picture (default: {picture.SPAN} cycles)")
    p.add_argument("--picture", type=Path, help="file for the picture (default: waves.png beside the trace)")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    a = arguments(argv)
    if a.trace:
        return system(a.trace, a.config)
    try:
        plan = registry.first(a.block)
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


def system(waves: Path, name: str) -> int:
    """Save file of a whole system's trace."""
    try:
        if not waves.is_file():
            raise ValueError("no such file")
        trace = Trace(waves.resolve())
        widths = trace.widths
        nodes = len({n.partition(".")[0] for n in widths if n.startswith("node")})
        if not nodes:
            raise ValueError("no trace of a system: no node0 in it")
        view = signals.system_view(config(name).replace(nodes=nodes), widths)
        gtkw = save.write(view, trace.path, trace.path.with_suffix(".gtkw"))
    except (MissingTool, ValueError) as e:
        print(f"{waves}: {e}", file=sys.stderr)
        return 1
    for note in view.notes:
        print(f"note:    {note}")
    print(f"save:    {gtkw} ({nodes} nodes)\nopen:    gtkwave {gtkw}")
    return 0


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
