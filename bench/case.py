"""A case of bench/blocks.py: a block and what it is given."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tb.lib.registry import BlockPlan, find


@dataclass(frozen=True, kw_only=True)
class Case:
    """A block and its stimulus: rows of packed words by source, words that come out by sink, and the image of its memories."""

    name: str
    sources: dict[str, np.ndarray]
    sinks: dict[str, int]
    runs: int
    deadline: int
    image: np.ndarray | None = None
    memories: tuple[str, ...] = ()
    config: str = ""  # default: the plan's
    slow_words: int = 0  # words for the slow simulators, of a block with one source and one sink; 0: they are left out

    @property
    def label(self) -> str:
        return f"{self.name}, {self.config}" if self.config else self.name

    def short(self) -> Case:
        """The first `slow_words`, once."""
        words = {n: w[: self.slow_words] for n, w in self.sources.items()}
        return replace(self, sources=words, sinks=dict.fromkeys(self.sinks, self.slow_words), runs=1)

    @property
    def plan(self) -> BlockPlan:
        p = find(self.name)
        feature = {"name": "speed", "tests": ["test_bench"]}
        return BlockPlan(
            name=p.name, title=p.title, dut=p.dut, bench=("bench.cocotb_speed",), path=p.path, config=self.config or p.config, args=p.args,
            simulators=p.simulators, depth=max(p.depth, *map(len, self.sources.values()), *self.sinks.values()), ports=p.ports, memory_bytes=p.memory_bytes, features=(feature,),
        )
