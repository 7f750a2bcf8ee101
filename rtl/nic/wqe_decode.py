"""What the message engine keeps of a WQE beside its 64 bytes: the few bits that decide when it starts and where it goes.

`decode` looks at a WQE as it arrives from memory. A WQE that cannot run is told here, by its `status`:

    LOC_QP_OP_ERR  unknown opcode; REDUCE with an unknown rop or dtype; WAIT with an unknown cmp; a reserved bit set (flags 7:6
                   and the last 8 bytes; Flag.SCALE on anything but REDUCE and fields another opcode uses are ignored)
    ALIGN_ERR      WAIT's addr_a or SET's addr_d not a multiple of 4
    MEM_ERR        WAIT's or SET's address does not fit in the memory's address width; or the read of the WQE failed (`bad`)

The first in this order (but `bad` before all) counts.
"""
from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from rtl.common.arbiter import round_robin
from rtl.common.layouts import layout
from spec.wqe import WQE, Compare, DType, Op, ReduceOp, Status


class Unit(IntEnum):
    """Where a WQE runs. LOCAL: done as it starts (NOOP, errors found by `decode`, flushed WQEs)."""

    LOCAL = 0
    NIC = 1
    NMC = 2
    SET = 3
    WAIT = 4


UNIT_OF = {
    Op.NOOP: Unit.LOCAL, Op.SEND: Unit.NIC, Op.SEND_IMM: Unit.NIC, Op.RECV: Unit.NIC, Op.WRITE: Unit.NIC, Op.WRITE_IMM: Unit.NIC,
    Op.READ: Unit.NIC, Op.REDUCE: Unit.NMC, Op.COPY: Unit.NMC, Op.WAIT: Unit.WAIT, Op.SET: Unit.SET,
}
WQE_LAYOUT = layout(WQE)
FLAGS = data.StructLayout({
    "fence": 1, "rx_sync": 1, "sync": 1, "signaled": 1, "event": 1, "scale": 1, "reserved": 2,
})
# status: Status, as far as `decode` can tell; bad: the WQE could not be read.
CTRL = data.StructLayout({
    "unit": 3, "recv": 1, "fence": 1, "rx_sync": 1, "sync": 1, "wqe_sync": 8, "status": 8, "bad": 1,
})
# What retirement needs of a started WQE. status counts when the unit is LOCAL; info: address to report with an error.
INFO = data.StructLayout({
    "wr_id": 32, "opcode": 8, "signaled": 1, "event": 1, "qpn": 24, "unit": 3, "status": 8, "info": 64,
})


def decode(m: Module, wqe: data.View, bad: Value, addr_width: int) -> data.View:
    """CTRL of `wqe`; `bad`: its read ended in an error."""
    ctrl = Signal(CTRL, name="decoded")
    flags = data.View(FLAGS, wqe.flags)
    op_error, align_error, addr_error = Signal(), Signal(), Signal()
    with m.Switch(wqe.opcode):
        for op, unit in UNIT_OF.items():
            with m.Case(op):
                m.d.comb += ctrl.unit.eq(unit)
                if op is Op.RECV:
                    m.d.comb += ctrl.recv.eq(1)
                if op is Op.REDUCE:
                    m.d.comb += op_error.eq((wqe.rop > max(ReduceOp)) | (wqe.dtype > max(DType)))
                if op is Op.WAIT:
                    m.d.comb += [
                        op_error.eq(wqe.cmp > max(Compare)),
                        align_error.eq(wqe.addr_a[:2].any()),
                        addr_error.eq((wqe.addr_a >> addr_width).any()),
                    ]
                if op is Op.SET:
                    m.d.comb += [
                        align_error.eq(wqe.addr_d[:2].any()),
                        addr_error.eq((wqe.addr_d >> addr_width).any()),
                    ]
        with m.Default():
            m.d.comb += op_error.eq(1)
    status = Mux(addr_error, Status.MEM_ERR, 0)
    status = Mux(align_error, Status.ALIGN_ERR, status)
    status = Mux(op_error | flags.reserved.any() | wqe["_reserved"].any(), Status.LOC_QP_OP_ERR, status)
    m.d.comb += [
        ctrl.status.eq(status),
        ctrl.fence.eq(flags.fence),
        ctrl.rx_sync.eq(flags.rx_sync),
        ctrl.sync.eq(flags.sync),
        ctrl.wqe_sync.eq(wqe.wqe_sync),
    ]
    with m.If(ctrl.status != 0):
        m.d.comb += [ctrl.unit.eq(Unit.LOCAL), ctrl.recv.eq(0)]
    with m.If(bad):
        m.d.comb += [
            ctrl.eq(0),
            ctrl.status.eq(Status.MEM_ERR),
            ctrl.bad.eq(1),
        ]
    return ctrl


def turn(m: Module, name: str, want: Value, *, advance: Value) -> Signal:
    """Index of the requester whose turn it is, round robin among the bits of `want` (0 while none is set)."""
    n = len(want)
    grant, index = round_robin(m, want, n, advance=advance, name=name), Signal(range(n), name=f"{name}_index")
    for bit in range(len(index)):
        m.d.comb += index[bit].eq(Cat(grant[i] for i in range(n) if i >> bit & 1).any())
    return index
