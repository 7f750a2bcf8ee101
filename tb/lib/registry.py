"""The blocks that have a bench: ``tb/<room>/<block>.toml``, which is also the block's testplan.

Keys: [block] name, title, dut ("module:callable"), config, args (attribute paths into the configuration, or "=literal"),
bench (cocotb module, or a list of them), simulators, four_state (the tests that the fast tier runs on Icarus; default all), depth,
long (true: the long tier alone runs it, `make sim` only by name), job ("system", the default: what the main job stands on; "engines": the
processing element's, which `make sim` runs by name, or with BLOCK=engines), group (a name that `make sim` and `make waves` take for the benches of
one unit), links (streams that carry whole frames, which a capture holds); [ports] port = mode; [memory] size_bytes; [[feature]] name, tests, bins.
"""
from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from spec.params import config as named_config
from tb.lib.simulators import ROOT

_KEYS = {"name", "title", "dut", "config", "args", "bench", "simulators", "four_state", "depth", "waves", "long", "job", "group", "links"}
JOBS = ("system", "engines")


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    name: str
    title: str
    dut: str
    bench: tuple[str, ...]
    path: Path
    config: str = "tiny"
    args: tuple[str, ...] = ()
    simulators: tuple[str, ...] = ("verilator",)
    depth: int = 4096
    four_state: tuple[str, ...] = ()
    waves: str = ""  # test that `make waves` runs; default the first
    job: str = "system"
    group: str = ""
    long: bool = False  # dear to build: only the long tier, and whoever names it, runs it
    links: tuple[str, ...] = ()
    ports: dict[str, str] = field(default_factory=dict)
    memory_bytes: int = 1 << 20
    features: tuple[dict[str, Any], ...] = ()

    @property
    def tests(self) -> list[str]:
        """Tests named by the features, in order, without repetition."""
        return list(dict.fromkeys(t for f in self.features for t in f["tests"]))

    @property
    def bins(self) -> list[str]:
        return [b for f in self.features for b in f.get("bins", [])]

    def tests_on(self, sim: str) -> list[str]:
        """Tests of the fast tier on `sim`: Icarus shows that no X gets out, for which some of them do."""
        return list(self.four_state) if sim == "icarus" and self.four_state else self.tests

    def make(self) -> Any:
        """The block's component."""
        module, _, attr = self.dut.partition(":")
        factory = getattr(importlib.import_module(module), attr)
        return factory(*(_argument(named_config(self.config), a) for a in self.args))


def _argument(params: Any, path: str) -> Any:
    if path.startswith("="):
        text = path[1:]
        return int(text, 0) if text.lstrip("-").replace("x", "").isalnum() and text[:1].isdigit() else text
    for part in path.split(".") if path != "self" else []:
        params = getattr(params, part)
    return params


def load(path: Path) -> BlockPlan:
    """Parse one plan.

    Raises:
        ValueError: unknown keys, or a feature without name or tests.
    """
    data = tomllib.loads(path.read_text())
    block = data.get("block", {})
    unknown = sorted(set(block) - _KEYS) + sorted(set(data) - {"block", "ports", "memory", "feature"})
    if unknown:
        raise ValueError(f"{path}: unknown key(s) {', '.join(unknown)}")
    if block.get("job", "system") not in JOBS:
        raise ValueError(f"{path}: job {block['job']!r}; expected one of {', '.join(JOBS)}")
    features = tuple(data.get("feature", ()))
    for f in features:
        if not f.get("name") or not f.get("tests") or set(f) - {"name", "tests", "bins"}:
            raise ValueError(f"{path}: a feature needs name and tests, may have bins; got {f}")
    for k in ("args", "simulators", "four_state", "bench", "links"):
        if k in block:
            block[k] = (block[k],) if isinstance(block[k], str) else tuple(block[k])
    return BlockPlan(
        **block, path=path, ports=data.get("ports", {}), features=features,
        memory_bytes=data.get("memory", {}).get("size_bytes", 1 << 20),
    )


@lru_cache
def blocks() -> dict[str, BlockPlan]:
    """All plans by name."""
    plans: dict[str, BlockPlan] = {}
    for path in sorted((ROOT / "tb").glob("*/*.toml")):
        plan = load(path)
        if plan.name in plans:
            raise ValueError(f"{path}: block {plan.name!r} is also in {plans[plan.name].path}")
        plans[plan.name] = plan
    return plans


def sets() -> dict[str, list[str]]:
    """Names that stand for several blocks, jobs first, then groups, with all their blocks. A block that has the name of its group is the first."""
    found: dict[str, list[str]] = {job: [] for job in JOBS}
    for name, plan in blocks().items():
        found[plan.job].append(name)
        if plan.group:
            found.setdefault(plan.group, []).append(name)
    return {s: sorted(names, key=lambda n: n != s) for s, names in found.items()}


def expand(wanted: str) -> tuple[list[str], list[str]]:
    """(blocks to run, blocks left to the long tier) of a comma-separated list of blocks, groups and jobs. Who names a block gets it; of a set
    those stay out that are dear to build, unless the set bears the block's name.

    Raises:
        KeyError: no such name; the message lists what there is.
    """
    run: list[str] = []
    left: list[str] = []
    for name in wanted.split(","):
        members = sets().get(name) or [find(name).name]
        for n in members:
            (left if blocks()[n].long and n != name else run).append(n)
    return list(dict.fromkeys(run)), [n for n in dict.fromkeys(left) if n not in run]


def first(name: str) -> BlockPlan:
    """The block of that name, or the first of the group.

    Raises:
        KeyError: no such name; the message lists what there is.
    """
    return find(name if name in blocks() or name not in sets() else expand(name)[0][0])


def find(name: str) -> BlockPlan:
    """The block of that name.

    Raises:
        KeyError: no such block; the message lists what there is.
    """
    if name in blocks():
        return blocks()[name]
    if name in sets():
        raise KeyError(f"{name} stands for several blocks: {', '.join(sets()[name])}; name one, or make sim BLOCK={name}")
    raise KeyError(f"no block {name!r}; blocks: {', '.join(blocks())}; groups: {', '.join(sets())}")
