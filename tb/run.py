"""Run benches: ``python -m tb.run --block NAME [--sim icarus] [--test NAME ...] [--seed N] [--waves] [--pcap FILE]``."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tb.lib import registry, runner
from tb.lib.simulators import BuildError, MissingTool, available


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m tb.run", description=__doc__)
    p.add_argument("--block", required=True, help="block name, or a comma-separated list")
    p.add_argument("--sim", default="", help="verilator or icarus (default: every simulator of the block's plan)")
    p.add_argument("--test", action="append", help="only this test (may be repeated)")
    p.add_argument("--seed", type=int, default=runner.DEFAULT_SEED)
    p.add_argument("--waves", action="store_true")
    p.add_argument("--pcap", metavar="FILE", type=Path, help="capture the block's links (pcapng, a clock cycle a nanosecond)")
    a = p.parse_args(argv)
    bad = 0
    for name in a.block.split(","):
        try:
            plan = registry.find(name)
            for sim in [a.sim] if a.sim else plan.simulators:
                missing = available(sim)
                if missing and sim != "verilator" and not a.sim and len(plan.simulators) > 1:
                    print(f"left out, not passed: {name} on {sim} ({missing})")
                    continue
                out = runner.run(plan, sim, tests=a.test, seed=a.seed, waves=a.waves, pcap=a.pcap)
                bad += report(out)
        except (MissingTool, BuildError, KeyError, ValueError) as e:
            print(f"{name}: {e.args[0] if e.args else e}", file=sys.stderr)
            bad += 1
    return 1 if bad else 0


def report(out: runner.Outcome) -> int:
    """Print one simulation's outcome; number of failures."""
    for t in out.passed:
        print(f"  pass {out.block} {out.sim} {t}")
    for t, why in out.failed.items():
        print(f"  FAIL {out.block} {out.sim} {t}: {why}\n       seed {out.seed}; again: {runner.rerun_command(out, t)}\n       log: {out.folder / 'sim.log'}")
    print(f"{out.block} ({out.sim}): {len(out.passed)} passed, {len(out.failed)} failed, {out.cycles} cycles, "
          f"build {out.build_seconds:.1f} s, run {out.seconds:.1f} s" + (f", waves {out.waves}" if out.waves else ""))
    return len(out.failed) + (not out.passed and not out.failed)


if __name__ == "__main__":
    sys.exit(main())
