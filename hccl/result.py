"""What a collective gives back, and the figures that nccl-tests make of it."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


def bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw: what of the vector crosses the busiest link of the best algorithm."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0 if ranks > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of one collective.

    `nbytes` is the vector's: of one rank's blocks together where there are blocks. `cycles` is None on a device without time, and so are the figures
    made of it. `algbw` is `nbytes` a cycle; `busbw` is that times `bus_factor`. `wqes` counts work-queue elements of all ranks by opcode, `counters` what
    each node's counters rose by, `host_ops` and `host_bytes` the reductions that the host carried out. `outputs` is None for a rank without a result.
    """

    collective: str
    op: str
    dtype: str
    count: int
    ranks: int
    nbytes: int
    seq: int
    outputs: list[Any]
    algorithm: str = ""
    cycles: int | None = None
    bound_cycles: int = 0
    wqes: dict[str, int] = field(default_factory=dict)
    counters: list[dict[str, int]] = field(default_factory=list)
    host_ops: int = 0
    host_bytes: int = 0

    @property
    def algbw(self) -> float | None:
        return self.nbytes / self.cycles if self.cycles else None

    @property
    def busbw(self) -> float | None:
        return None if self.algbw is None else self.algbw * bus_factor(self.collective, self.ranks)

    @property
    def percent_of_bound(self) -> float | None:
        """100 when the run took exactly `bound_cycles`; None where nothing was sent."""
        return 100 * self.bound_cycles / self.cycles if self.cycles and self.bound_cycles else None
