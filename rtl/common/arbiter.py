"""Round-robin choice of one of `n` requests, as word arithmetic (a few operations for any `n`).

`round_robin(m, request, n)` builds the logic into `m` and returns the grant, one-hot, combinational in `request`; the requester after
the last one served has the highest priority. The turn moves when `advance` is high (default: whenever something is granted).
A waiting requester is passed over at most n - 1 times.
"""
from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value


def round_robin(m: Module, request: Value, n: int, *, advance: Value | None = None, name: str = "rr") -> Signal:
    """One-hot grant among the `n` bits of `request` (0: none requested)."""
    grant = Signal(n, name=f"{name}_grant")
    if n == 1:
        m.d.comb += grant.eq(request)
        return grant
    above = Signal(n, name=f"{name}_above")  # the requesters whose turn comes before the wrap
    later = Signal(n, name=f"{name}_later")
    pool = Signal(n, name=f"{name}_pool")
    m.d.comb += [
        later.eq(request & above),
        pool.eq(Mux(later.any(), later, request)),
        grant.eq(pool & (~pool + 1)),
    ]
    with m.If(grant.any() if advance is None else advance):
        m.d.sync += above.eq(~(grant | (grant - 1)))
    return grant
