"""Node memory: banks of SRAM behind AXI4 ports.

Word w (64 bytes) of the memory is row w // banks of bank w % banks; each bank reads one row and writes one a cycle, so up to `banks`
ports stream at full rate together. Each port and direction has its own path: reads and writes never wait for each other.

    AW, W queues -> write request --\\                      /--> response slots -> R
                                     round robin per bank --
    AR queue     -> read request  --/     and direction     \\--> B (after the data is in the bank)

Crossbars are memories: W beats of all ports lie in one array that each bank reads by index, and each bank writes what it read into
the slot of the port it belongs to. So a cycle costs no 512-bit multiplexers, in gates of an SRAM compiler as in a simulator.

Parameters: `mem` (MemParams), `ports`.
Members: `s0` .. `s<ports-1>`: AXI4, subordinate side.

Rules
    1. Responses come in the order of the requests of their port and direction, whatever the ids.
    2. Bursts: INCR and FIXED, 1 to 256 beats, any `size` up to the full width, any start address; strobes as the manager sets them.
       WRAP: SLVERR on every beat, nothing is written.
    3. Beats at or beyond `size_bytes`: DECERR, nothing written, read data 0. B gives DECERR when any beat of the burst was beyond.
    4. B is offered only when every byte of the burst is in its bank: a read accepted after B sees the data. Reads and writes that
       overlap in time may see old or new bytes.
    5. Burst length comes from `len`; W `last` is not looked at. W beats may come before their AW.
    6. Arbitration is round robin per bank and direction: a waiting port is passed over at most `ports` - 1 times.

Latency without conflicts: AR accepted to R valid 3 cycles; AW and W accepted to B valid 2 cycles (from the later of them).
Interval: 1 beat a cycle per port and direction, bursts back to back without a bubble; k <= banks ports that stream sequential addresses
fall into bank rotation (at most k - 1 cycles lost each at the start) and all reach 1 beat a cycle.

Assumptions
    A1. A manager follows the stream rules on AW, W and AR (checked on every port of every bench) and sends len + 1 beats for each AW.
"""
from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, memory
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In
from amaranth.utils import ceil_log2, exact_log2

from rtl.common.arbiter import round_robin
from rtl.common.axi4 import AXI4Signature, Burst, Resp
from rtl.common.block import Block
from rtl.mem.bank import SramBank
from spec.params import MemParams

W_SLOTS = 4  # W beats a port may have waiting
R_SLOTS = 8  # read beats a port may have on their way
QUEUE = 4  # waiting AW, AR, B of a port


class Sram(Block):
    """AXI4 memory of `ports` ports."""

    def __init__(self, mem: MemParams, ports: int):
        if not isinstance(ports, int) or not 1 <= ports <= 64:
            raise ValueError(f"Sram ports = {ports!r}: expected an integer from 1 to 64")
        self.mem, self.ports = mem, ports
        self.axi = AXI4Signature.of(mem)
        super().__init__({f"s{p}": In(self.axi) for p in range(ports)})

    def elaborate(self, platform):
        m = Module()
        mem, n = self.mem, self.ports
        rows = mem.size_bytes // mem.data_bytes // mem.banks
        ports = [getattr(self, f"s{p}") for p in range(n)]

        # Slots of all ports in one array each; one row more, never written, for the data of error beats.
        m.submodules.w_slots = w_mem = memory.Memory(
            shape=unsigned(9 * mem.data_bytes), depth=n * W_SLOTS, init=())
        m.submodules.r_slots = r_mem = memory.Memory(
            shape=unsigned(8 * mem.data_bytes), depth=n * R_SLOTS + 1, init=())
        zero_row = n * R_SLOTS

        writes = [self._write_side(m, p, port, w_mem) for p, port in enumerate(ports)]
        reads = [self._read_side(m, p, port, r_mem, zero_row) for p, port in enumerate(ports)]
        w_grant, r_grant = [Signal(mem.banks, name=f"w_grants{p}") for p in range(n)], [
            Signal(mem.banks, name=f"r_grants{p}") for p in range(n)]

        for b in range(mem.banks):
            m.submodules[f"bank{b}"] = bank = SramBank(rows, mem.data_bytes)

            grant, row, slot = self._pick(m, writes, b, "w")
            beat = w_mem.read_port(domain="comb")
            m.d.comb += [
                beat.addr.eq(slot), bank.w_row.eq(row), bank.w_data.eq(beat.data[: 8 * mem.data_bytes]),
                bank.w_en.eq(Mux(grant.any(), beat.data[8 * mem.data_bytes:], 0)),
            ]
            m.d.comb += [w_grant[p][b].eq(grant[p]) for p in range(n)]

            grant, row, slot = self._pick(m, reads, b, "r")
            fill = r_mem.write_port()
            m.d.comb += [bank.r_en.eq(grant.any()), bank.r_row.eq(row), fill.data.eq(bank.r_data)]
            m.d.sync += fill.en.eq(grant.any())
            with m.If(grant.any()):
                m.d.sync += fill.addr.eq(slot)
            m.d.comb += [r_grant[p][b].eq(grant[p]) for p in range(n)]

        for p in range(n):
            m.d.comb += [writes[p]["granted"].eq(w_grant[p].any()), reads[p]["granted"].eq(r_grant[p].any())]
        return m

    def _pick(self, m: Module, side: list[dict], b: int, kind: str) -> tuple[Signal, Signal, Signal]:
        """Bank `b`'s choice among the ports of one direction: grant (one-hot), row, slot."""
        n, low = self.ports, exact_log2(self.mem.data_bytes)
        high = low + exact_log2(self.mem.banks)
        rows = self.mem.size_bytes // self.mem.data_bytes // self.mem.banks
        request = Signal(n, name=f"{kind}{b}_request")
        row, slot = Signal(ceil_log2(rows), name=f"{kind}{b}_row"), Signal(len(side[0]["slot"]), name=f"{kind}{b}_slot")
        m.d.comb += request.eq(Cat(s["request"] & (s["address"][low:high] == b) for s in side))
        grant = round_robin(m, request, n, name=f"{kind}{b}")
        for p, s in enumerate(side):
            with m.If(grant[p]):
                m.d.comb += [row.eq(s["address"][high:]), slot.eq(s["slot"])]
        return grant, row, slot

    def _burst(self, m: Module, p: int, channel, kind: str) -> dict:
        """Queue of `channel` and the walk through the burst at its head: address of the beat, whether it is the last."""
        m.submodules[f"{kind}{p}"] = queue = SyncFIFO(width=len(channel.payload.as_value()), depth=QUEUE)
        m.d.comb += [
            queue.w_data.eq(channel.payload), queue.w_en.eq(channel.valid), channel.ready.eq(queue.w_rdy),
        ]
        head = data.View(self.axi.addr_layout, queue.r_data)
        width = self.mem.addr_width
        following, count = Signal(width, name=f"{kind}{p}_following"), Signal(8, name=f"{kind}{p}_count")
        address = Signal(width, name=f"{kind}{p}_address")
        step, last, bad, advance = (Signal(w, name=f"{kind}{p}_{s}") for w, s in (
            (7, "step"), (1, "last"), (2, "bad"), (1, "advance")))
        m.d.comb += [
            address.eq(Mux(count == 0, head.addr, following)),
            step.eq(Mux(head.burst == Burst.FIXED, 0, 1 << head.size)),
            last.eq(count == head.len),
            queue.r_en.eq(advance & last),
        ]
        with m.If((head.burst == Burst.WRAP) | (head.burst == 3) | (head.size > exact_log2(self.mem.data_bytes))):
            m.d.comb += bad.eq(Resp.SLVERR)
        with m.Elif((address >> exact_log2(self.mem.size_bytes)) != 0):
            m.d.comb += bad.eq(Resp.DECERR)
        with m.If(advance):
            with m.If(last):
                m.d.sync += count.eq(0)
            with m.Else():
                # After an unaligned start the beats are aligned to their size; FIXED stays.
                m.d.sync += [
                    count.eq(count + 1),
                    following.eq(Mux(step == 0, address, (address | (step - 1)[:7]) + 1)),
                ]
        return {"valid": queue.r_rdy, "head": head, "address": address, "last": last, "bad": bad, "advance": advance}

    def _write_side(self, m: Module, p: int, port, w_mem: memory.Memory) -> dict:
        burst = self._burst(m, p, port.aw, "aw")
        put, take, level = Signal(2, name=f"w{p}_put"), Signal(2, name=f"w{p}_take"), Signal(range(W_SLOTS + 1), name=f"w{p}_level")
        pushed, granted = Signal(name=f"w{p}_pushed"), Signal(name=f"w{p}_granted")
        slot, w = Signal(range(self.ports * W_SLOTS), name=f"w{p}_slot"), w_mem.write_port()
        m.submodules[f"b{p}"] = done = SyncFIFO(width=len(port.b.payload.as_value()), depth=QUEUE)
        m.d.comb += [
            port.w.ready.eq(level != W_SLOTS), pushed.eq(port.w.valid & port.w.ready),
            w.addr.eq(p * W_SLOTS + put), w.data.eq(Cat(port.w.payload.data, port.w.payload.strb)), w.en.eq(pushed),
            slot.eq(p * W_SLOTS + take),
        ]
        able, advance = Signal(name=f"w{p}_able"), burst["advance"]
        m.d.comb += [
            able.eq(burst["valid"] & (level != 0) & (done.w_rdy | ~burst["last"])),
            advance.eq(Mux(burst["bad"] != 0, able, granted)),
        ]
        m.d.sync += level.eq(level + pushed - advance)
        with m.If(pushed):
            m.d.sync += put.eq(put + 1)
        with m.If(advance):
            m.d.sync += take.eq(take + 1)
        b = data.View(self.axi.b_layout, done.w_data)
        m.d.comb += [
            b.resp.eq(burst["bad"]),  # of the last beat: SLVERR is the whole burst's, and beyond the memory a burst stays beyond
            b.id.eq(burst["head"].id), done.w_en.eq(advance & burst["last"]),
            port.b.payload.eq(done.r_data), port.b.valid.eq(done.r_rdy), done.r_en.eq(port.b.ready),
        ]
        return {"request": able & (burst["bad"] == 0), "address": burst["address"], "slot": slot, "granted": granted}

    def _read_side(self, m: Module, p: int, port, r_mem: memory.Memory, zero_row: int) -> dict:
        burst = self._burst(m, p, port.ar, "ar")
        bits = exact_log2(R_SLOTS)
        put, take = Signal(bits, name=f"r{p}_put"), Signal(bits, name=f"r{p}_take")
        used, filled = (Signal(range(R_SLOTS + 1), name=f"r{p}_{s}") for s in ("used", "filled"))
        granted, filling, popped = (Signal(name=f"r{p}_{s}") for s in ("granted", "filling", "popped"))
        slot = Signal(range(self.ports * R_SLOTS + 1), name=f"r{p}_slot")
        able, advance = Signal(name=f"r{p}_able"), burst["advance"]
        out = r_mem.read_port(domain="comb")

        # What goes with the data, slot by slot.
        notes = data.StructLayout({"resp": 2, "last": 1, "id": self.mem.id_width})
        m.submodules[f"r_notes{p}"] = note_mem = memory.Memory(shape=notes, depth=R_SLOTS, init=())
        note, seen = note_mem.write_port(), note_mem.read_port(domain="comb")
        m.d.comb += [
            able.eq(burst["valid"] & (used != R_SLOTS)),
            advance.eq(Mux(burst["bad"] != 0, able, granted)),
            slot.eq(p * R_SLOTS + put),
            note.addr.eq(put), note.en.eq(advance),
            note.data.resp.eq(burst["bad"]), note.data.last.eq(burst["last"]), note.data.id.eq(burst["head"].id),
            popped.eq(port.r.valid & port.r.ready),
            seen.addr.eq(take), port.r.valid.eq(filled != 0),
            out.addr.eq(Mux(seen.data.resp == 0, p * R_SLOTS + take, zero_row)),
            port.r.payload.data.eq(out.data), port.r.payload.resp.eq(seen.data.resp),
            port.r.payload.last.eq(seen.data.last), port.r.payload.id.eq(seen.data.id),
        ]
        m.d.sync += [filling.eq(advance), used.eq(used + advance - popped), filled.eq(filled + filling - popped)]
        with m.If(advance):
            m.d.sync += put.eq(put + 1)
        with m.If(popped):
            m.d.sync += take.eq(take + 1)
        return {"request": able & (burst["bad"] == 0), "address": burst["address"], "slot": slot, "granted": granted}
