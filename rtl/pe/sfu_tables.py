"""Tables of the special function unit, read by every lane at its own place: octaves of the functions, and coefficients of the segments.

One array of each, with a read port for each lane. (A synthesis tool makes as many copies as its memories have too few ports; a simulator keeps one.)

| read in stage | table | address | gives |
|---|---|---|---|
| 2 | octaves | function's code above the octave: 0 below the first, 1 the first, ... | base row, bits of the segment, whether it is the one below |
| 4 | c4, c3 | row | |
| 5 | c2 | row | |
| 6 | c1 | row | |
| 7 | c0, e | row | e as 1 - e |

Latency 1 cycle: a lane's output loads where its bit of `reads` is 1.

Assumptions:
1. Addresses are within the tables; guarded by the lane, whose rows come from the octaves.
"""
from __future__ import annotations

from amaranth.hdl import Module, signed
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from spec.sfu import COEFFICIENT_BITS, EXPONENT_BITS, REGIONS, ROWS, SfuOp

ROW = len(ROWS).bit_length()
OCTAVE = 9  # 4 bits of octave, 5 of operation
MOST_BITS = max(bits for r in REGIONS.values() for _, bits in r.octaves)
SEGMENTS = data.StructLayout({"base": ROW, "bits": MOST_BITS.bit_length(), "near": 1})
COEFFICIENTS = data.StructLayout({
    "c4": signed(COEFFICIENT_BITS[4]), "c3": signed(COEFFICIENT_BITS[3]), "c2": signed(COEFFICIENT_BITS[2]), "c1": signed(COEFFICIENT_BITS[1]),
    "c0": COEFFICIENT_BITS[0], "e": EXPONENT_BITS,
})
FIELDS = ((), ("c4", "c3"), ("c2",), ("c1",), ("c0", "e"))  # of each table's word, from the low bits
FUNCTIONS = {
    SfuOp.RECIPROCAL: "reciprocal", SfuOp.RSQRT: "rsqrt", SfuOp.LOG: "log", SfuOp.TANH: "tanh", SfuOp.SIGMOID: "sigmoid", SfuOp.SILU: "sigmoid",
    SfuOp.GELU: "gelu", SfuOp.SOFTPLUS: "softplus",
}


def _octaves() -> list[int]:
    """Contents of the first table; octaves beyond a function's last count as the last."""
    out = [0] * (1 << OCTAVE)
    for op, name in FUNCTIONS.items():
        r = REGIONS[name]
        for k in range(16):
            base, bits = r.octaves[min(max(k - 1, 0), len(r.octaves) - 1)]
            near = k == 0 and r.near >= 0
            out[op << 4 | k] = r.near | 1 << (ROW + MOST_BITS.bit_length()) if near else base | bits << ROW
    return out


def _columns(*columns: int) -> tuple[int, list[int]]:
    """Width and contents of a table of these columns of `ROWS`, the first in the low bits."""
    bits = [(*COEFFICIENT_BITS, EXPONENT_BITS)[j] for j in columns]
    rows = []
    for r in ROWS:
        value, at = 0, 0
        for j, b in zip(columns, bits, strict=True):
            value |= ((1 - r[j] if j == 5 else r[j]) & (1 << b) - 1) << at
            at += b
        rows.append(value)
    return sum(bits), rows


class SfuTables(Block):
    """See the module's contract.

    Args: `lanes`. Members, each an array over lanes: `octave` In, `rows` In (4 addresses, of stages 4 to 7), `reads` In 5, `place` Out SEGMENTS,
    `coefficients` Out COEFFICIENTS.
    """

    def __init__(self, lanes: int):
        self.lanes = lanes
        super().__init__({
            "octave": In(data.ArrayLayout(OCTAVE, lanes)), "rows": In(data.ArrayLayout(data.ArrayLayout(ROW, 4), lanes)),
            "reads": In(data.ArrayLayout(5, lanes)), "place": Out(data.ArrayLayout(SEGMENTS, lanes)),
            "coefficients": Out(data.ArrayLayout(COEFFICIENTS, lanes)),
        })

    def elaborate(self, platform):
        m = Module()
        octaves = (SEGMENTS.size, _octaves())
        kinds = (("octaves", octaves), ("c43", _columns(4, 3)), ("c2", _columns(2)), ("c1", _columns(1)), ("c0e", _columns(0, 5)))
        for k, (name, (width, init)) in enumerate(kinds):
            memory = m.submodules[name] = Memory(shape=width, depth=len(init), init=init)
            for i in range(self.lanes):
                port = memory.read_port()
                m.d.comb += [port.addr.eq(self.rows[i][k - 1] if k else self.octave[i]), port.en.eq(self.reads[i][k])]
                if k == 0:
                    m.d.comb += self.place[i].eq(port.data)
                at = 0
                for field in FIELDS[k]:
                    bits = COEFFICIENTS[field].width
                    m.d.comb += self.coefficients[i][field].eq(port.data[at:at + bits])
                    at += bits
        return m
