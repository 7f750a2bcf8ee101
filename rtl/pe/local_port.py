"""Port of the local memory: rows of 64 bytes, requests in order, an answer for every read.

Rules
    1. `request` {write, addr (a row), data, strb (a bit a byte, for writes)}; reads are answered on `response` {data, error} in the order of the
       requests, writes are not answered. A read sees every earlier request of its port, and whatever of other ports was accepted before it.
    2. `response` has room for what was asked: a unit asks only for what it can take, or takes its time; then the port, and no other, waits.
    3. `error`: the row was damaged beyond repair (ECC).

Assumptions
    A1. `addr` is below the number of rows (spec.params: PeParams.local_bytes / 64); higher bits do not exist.
"""
from __future__ import annotations

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from spec.params import PeParams

ROW_BYTES = 64


class LocalPort(wiring.Signature):
    """Seen from the unit that asks."""

    def __init__(self, pe: PeParams):
        self.addr_bits = exact_log2(pe.local_bytes // ROW_BYTES)
        self.request_layout = data.StructLayout({"write": 1, "addr": self.addr_bits, "data": 8 * ROW_BYTES, "strb": ROW_BYTES})
        self.response_layout = data.StructLayout({"data": 8 * ROW_BYTES, "error": 1})
        super().__init__({
            "request": Out(stream.Signature(self.request_layout)),
            "response": In(stream.Signature(self.response_layout)),
        })

    def __eq__(self, other):
        return isinstance(other, LocalPort) and self.addr_bits == other.addr_bits

    def __repr__(self):
        return f"LocalPort(addr_bits={self.addr_bits})"
