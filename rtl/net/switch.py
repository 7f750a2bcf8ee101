"""Output-queued switch: port n leads to node n.

Parameters: `switch` (SwitchParams: ports, buffer_flits).
Members: `i0` .. In, `o0` .. Out: streams of packet beats (`packet_layout()`); `dropped` Out(32): frames with an unknown destination since
reset, modulo 2^32.

Rules
    1. A frame goes to the port of the node its first beat's destination MAC names: bytes 0..5, big-endian, MAC_BASE + node (its own
       input's port too). Any other address: the frame is swallowed and counted, whatever the other ports do.
    2. Frames leave whole: beats of two frames never mix on an output. Beats of one input and output keep their order.
    3. Cut-through: a beat moves on before its frame is complete. Each output serves waiting inputs round robin, frame by frame.
    4. Nothing is lost: a full output queue (`buffer_flits` beats) stops the inputs whose head frame goes there, and no others. A frame
       behind such a head waits with it (head-of-line blocking within an input).

Latency: 2 cycles from a beat accepted at an idle switch to its offer at the output. Interval: 1 beat a cycle on every port, frames of
one beat back to back included.
As in `rtl/mem/sram.py` the crossbar is a memory: beats of all inputs lie in one array of short queues which each output reads by index.

Assumptions
    A1. Each frame starts with `first` and ends with `last` (checked by the bench's frame monitor on every output).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from rtl.common.arbiter import round_robin
from rtl.common.block import Block
from rtl.common.layouts import packet_layout
from spec.packet import MAC_BASE
from spec.params import SwitchParams

SLOTS = 4  # beats an input may have waiting before its output's queue


class Switch(Block):
    def __init__(self, switch: SwitchParams):
        self.switch = switch
        beats = stream.Signature(packet_layout())
        super().__init__({
            **{f"i{p}": In(beats) for p in range(switch.ports)},
            **{f"o{p}": Out(beats) for p in range(switch.ports)},
            "dropped": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        n = self.switch.ports
        slots = memory.Memory(shape=packet_layout(), depth=n * SLOTS, init=())
        m.submodules.slots = slots
        inputs = [self._input(m, p, slots) for p in range(n)]
        moved = [Signal(n, name=f"moved{p}") for p in range(n)]

        for q in range(n):
            output = getattr(self, f"o{q}")
            m.submodules[f"queue{q}"] = queue = SyncFIFO(width=packet_layout().size, depth=self.switch.buffer_flits)
            request, locked, owner, chosen = (Signal(w, name=f"out{q}_{s}") for w, s in (
                (n, "request"), (1, "locked"), (n, "owner"), (n, "chosen")))
            start, go, last = (Signal(name=f"out{q}_{s}") for s in ("start", "go", "last"))
            slot, beat = Signal(range(n * SLOTS), name=f"out{q}_slot"), slots.read_port(domain="comb")
            m.d.comb += request.eq(Cat(s["valid"] & s["known"] & (s["port"] == q) for s in inputs))
            grant = round_robin(m, request, n, advance=start, name=f"out{q}")
            m.d.comb += [
                chosen.eq(Mux(locked, owner & request, grant)),
                go.eq(chosen.any() & queue.w_rdy), start.eq(go & ~locked),
                beat.addr.eq(slot), queue.w_data.eq(beat.data), queue.w_en.eq(go),
                output.payload.eq(queue.r_data), output.valid.eq(queue.r_rdy), queue.r_en.eq(output.ready),
            ]
            for p, s in enumerate(inputs):
                with m.If(chosen[p]):
                    m.d.comb += [slot.eq(s["slot"]), last.eq(s["last"])]
                m.d.comb += moved[p][q].eq(chosen[p] & go)
            with m.If(go):
                m.d.sync += [locked.eq(~last), owner.eq(chosen)]

        swallowed = Signal(range(n + 1))
        for p, s in enumerate(inputs):
            m.d.comb += s["pop"].eq(s["drop"] | moved[p].any())
        m.d.comb += swallowed.eq(sum((s["drop"] & s["last"] for s in inputs), start=0))
        m.d.sync += self.dropped.eq(self.dropped + swallowed)
        return m

    def _input(self, m: Module, p: int, slots: memory.Memory) -> dict:
        """Short queue of input `p`: the beats in `slots`, where each goes and whether it ends a frame in a narrow memory beside."""
        port = getattr(self, f"i{p}")
        n = self.switch.ports
        note_layout = data.StructLayout({"port": range(n), "known": 1, "last": 1})
        m.submodules[f"notes{p}"] = notes = memory.Memory(shape=note_layout, depth=SLOTS, init=())
        note, head = notes.write_port(), notes.read_port(domain="comb")
        put, take, level = Signal(2, name=f"in{p}_put"), Signal(2, name=f"in{p}_take"), Signal(range(SLOTS + 1), name=f"in{p}_level")
        valid, pushed, pop, drop = (Signal(name=f"in{p}_{s}") for s in ("valid", "pushed", "pop", "drop"))
        slot = Signal(range(n * SLOTS), name=f"in{p}_slot")
        current = Signal(note_layout, name=f"in{p}_current")
        write = slots.write_port()

        mac, node = Signal(48, name=f"in{p}_mac"), Signal(48, name=f"in{p}_node")
        m.d.comb += [
            mac.eq(Cat(port.payload.data.word_select(5 - k, 8) for k in range(6))),
            node.eq(mac - MAC_BASE),
            note.data.port.eq(Mux(port.payload.first, node[: ceil_log2(n)], current.port)),
            note.data.known.eq(Mux(port.payload.first, node < n, current.known)),
            note.data.last.eq(port.payload.last),
            port.ready.eq(level != SLOTS), pushed.eq(port.valid & port.ready),
            note.addr.eq(put), note.en.eq(pushed),
            write.addr.eq(p * SLOTS + put), write.data.eq(port.payload), write.en.eq(pushed),
            head.addr.eq(take), valid.eq(level != 0), slot.eq(p * SLOTS + take),
            drop.eq(valid & ~head.data.known),
        ]
        m.d.sync += level.eq(level + pushed - pop)
        with m.If(pushed):
            m.d.sync += [put.eq(put + 1), current.eq(note.data)]
        with m.If(pop):
            m.d.sync += take.eq(take + 1)
        return {"valid": valid, "known": head.data.known, "port": head.data.port, "last": head.data.last,
                "slot": slot, "pop": pop, "drop": drop}
