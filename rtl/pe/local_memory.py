"""Local memory of the processing element: banks of 64-byte rows behind ports that are served in order.

Row r is row r // banks of bank r % banks. Each bank makes one access a cycle, a read or a write. Every port has a path of its own to every bank:

    request p ── round robin per bank ──► bank ──► response slots of port p ──► response p

Rules
    1. The port's rules are those of :mod:`rtl.pe.local_port`. A request is accepted in the cycle in which its bank is its own; the bank makes the
       accesses in the order of acceptance. So all requests to one row are in one order for everybody: a read sees every write to its row that was
       accepted in an earlier cycle, of any port, and no later one. Two requests to one bank are never accepted in one cycle.
    2. A read is accepted only when the port has a free slot for its answer (`SLOTS`). A port whose answers are not taken therefore stops asking,
       and holds no bank; its own later requests, writes too, wait behind.
    3. Arbitration is round robin per bank: a port that asks is passed over at most `ports` - 1 times. A port `first` goes before the others, which are in
       round robin among themselves; of others that ask one is let in after `PATIENCE` accesses of `first`. So `first` is passed over at most once, another port at most
       (`PATIENCE` + 1) * (`ports` - 1) - 1 times.
    4. A write without strobes changes nothing and takes its turn like others.
    5. With `pe.ecc` each 64-bit word has 8 check bits (`spec.ecc`). One wrong bit of a word is corrected in the answer, the stored word stays as it
       is; two give `error` in the answer, whose data then shows the bits as stored. A write of which some word gets some but not all bytes takes the
       bank for two cycles: the row is read, corrected, merged and written; a word with two wrong bits stays as it is, unless all its bytes are
       written.
    6. `corrected` and `damaged` count words with one and with two wrong bits, each time their row is read (by a read or by such a write), modulo
       2^32.
    7. `flip` (with ECC; for tests, 0 otherwise) is XORed into the code bits that a write of port 0 stores: word w at bits 72w, data then check bits.
    8. Contents are unknown until written. With ECC that holds for partial writes too: a row is first written in whole words, or loaded.

Parameters: `pe` (local_bytes, local_banks, ecc), `ports` 1 to 16, `first` a port or none: one that takes a row every cycle and could never make up for a cycle lost.
Members: `p0` … : LocalPort; with ECC `flip` In(576), `corrected` and `damaged` Out(32).

Latency: a request that meets no other is accepted at once; `response` is valid 3 cycles later. Interval: 1 access a cycle and port, up to `banks` in
all; ports that stream over the rows fall into bank rotation (k ports lose at most k - 1 cycles each at the start). A partial write with ECC costs its
bank one cycle more.

Contents in simulation: `bank<b>.mem`, see :mod:`rtl.pe.local_bank`.

Assumptions
    A1. The ports follow the stream rules (checked on every port of the bench).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from rtl.common.arbiter import round_robin
from rtl.common.block import Block, shared
from rtl.numeric.pipeline import wire
from rtl.pe.local_bank import CODE_ROW, LocalBank
from rtl.pe.local_port import ROW_BYTES, LocalPort
from spec.params import PeParams

SLOTS = 8  # answers a port may have on their way
PATIENCE = 15  # accesses of a bank by the first port while another waits
LATENCY = 3


class LocalMemory(Block):
    """See the module's contract."""

    def __init__(self, pe: PeParams, ports: int, first: int | None = None):
        if not isinstance(ports, int) or not 1 <= ports <= 16:
            raise ValueError(f"LocalMemory ports = {ports!r}: expected an integer from 1 to 16")
        if first is not None and not 0 <= first < ports:
            raise ValueError(f"LocalMemory first = {first!r}: expected a port, 0 to {ports - 1}, or None")
        self.rows = pe.local_bytes // ROW_BYTES // pe.local_banks
        if self.rows < 2:
            raise ValueError(f"LocalMemory: {pe.local_bytes} bytes in {pe.local_banks} banks; expected two rows of {ROW_BYTES} bytes or more in each")
        self.pe, self.ports, self.first = pe, ports, first
        super().__init__({
            **{f"p{p}": In(LocalPort(pe)) for p in range(ports)},
            **({"flip": In(CODE_ROW), "corrected": Out(32), "damaged": Out(32)} if pe.ecc else {}),
        })

    def elaborate(self, platform):
        m = Module()
        n, banks, ecc = self.ports, self.pe.local_banks, self.pe.ecc
        low, turns = exact_log2(banks), 2 if ecc else 1  # rows a port may have on their way to a bank
        ports = [getattr(self, f"p{p}") for p in range(n)]

        # Rows on their way, of all ports in one array each: banks read and write them by index.
        m.submodules.w_slots = w_mem = memory.Memory(shape=unsigned(9 * ROW_BYTES), depth=max(2, n * turns), init=())
        m.submodules.r_slots = r_mem = memory.Memory(shape=unsigned(8 * ROW_BYTES + 1), depth=n * SLOTS, init=())
        f_mem = None
        if ecc:
            m.submodules.f_slots = f_mem = memory.Memory(shape=unsigned(CODE_ROW), depth=2, init=())

        grants = [Signal(banks, name=f"p{p}_grants") for p in range(n)]
        asks = [self._port(m, p, port, grants[p].any(), w_mem, r_mem, f_mem, turns) for p, port in enumerate(ports)]

        corrected, damaged = [], []
        for b in range(banks):
            m.submodules[f"bank{b}"] = instance = shared(LocalBank(self.rows, ecc))
            bank = instance._block
            en, write = Signal(name=f"b{b}_en"), Signal(name=f"b{b}_write", reset_less=True)
            row = Signal(ceil_log2(self.rows), name=f"b{b}_row", reset_less=True)
            w_slot = Signal(range(max(2, n * turns)), name=f"b{b}_w_slot", reset_less=True)
            r_slot, fill_slot = (Signal(range(n * SLOTS), name=f"b{b}_{s}_slot", reset_less=True) for s in ("r", "fill"))
            partial = Signal(name=f"b{b}_partial")

            mine = Cat(a["able"] & (a["addr"][:low] == b) for a in asks)
            request = wire(m, Mux(partial, 0, mine) if ecc else mine, f"b{b}_request")
            grant = self._grant(m, request, b)
            given = wire(m, request.any(), f"b{b}_given")
            m.d.sync += en.eq(given)
            if ecc:
                m.d.sync += partial.eq((grant & Cat(a["partial"] for a in asks)).any())
            for p, a in enumerate(asks):
                m.d.comb += grants[p][b].eq(grant[p])
                with m.If(grant[p]):
                    m.d.sync += [write.eq(a["write"]), row.eq(a["addr"][low:]), w_slot.eq(a["w_slot"]), r_slot.eq(a["r_slot"])]

            beat, fill = w_mem.read_port(domain="comb"), r_mem.write_port()
            reading = wire(m, en & ~write, f"b{b}_reading")
            m.d.sync += fill.en.eq(reading)
            with m.If(reading):
                m.d.sync += fill_slot.eq(r_slot)
            m.d.comb += [
                beat.addr.eq(w_slot), bank.data.eq(beat.data[: 8 * ROW_BYTES]), bank.strb.eq(beat.data[8 * ROW_BYTES :]),
                bank.en.eq(en), bank.write.eq(write), bank.row.eq(row),
                fill.addr.eq(fill_slot), fill.data.eq(Cat(bank.r_data, bank.error)),
            ]
            if f_mem is not None:
                flip = f_mem.read_port(domain="comb")
                m.d.comb += [
                    bank.partial.eq(partial), flip.addr.eq(w_slot[:1]), bank.flip.eq(Mux(w_slot < turns, flip.data, 0)),
                ]
                corrected.append(bank.corrected)
                damaged.append(bank.damaged)
        if ecc:
            for count, found in ((self.corrected, corrected), (self.damaged, damaged)):
                m.d.sync += count.eq(count + sum(found))
        return m

    def _grant(self, m: Module, request, b: int):
        """One-hot choice among the ports that ask for bank `b`."""
        if self.first is None:
            return round_robin(m, request, self.ports, name=f"b{b}")
        lead = 1 << self.first
        waited = Signal(range(PATIENCE + 1), name=f"b{b}_waited")  # accesses of `first` while others ask
        others = wire(m, request & ~Const(lead, self.ports), f"b{b}_others")
        leads = wire(m, request[self.first] & ~(others.any() & (waited == PATIENCE)), f"b{b}_leads")
        grant = wire(m, Mux(leads, lead, round_robin(m, Mux(leads, 0, others), self.ports, name=f"b{b}")), f"b{b}_grant")
        m.d.sync += waited.eq(Mux(leads & others.any(), waited + 1, 0))
        return grant

    def _port(self, m: Module, p: int, port, granted, w_mem, r_mem, f_mem, turns: int) -> dict:
        """Request and answers of one port: what it asks for in this cycle."""
        ask = port.request.payload
        put, take = (Signal(range(SLOTS), name=f"p{p}_{s}") for s in ("put", "take"))
        used, filled = (Signal(range(SLOTS + 1), name=f"p{p}_{s}") for s in ("used", "filled"))
        on_way, turn = Signal(2, name=f"p{p}_on_way"), Signal(name=f"p{p}_turn")
        able = wire(m, port.request.valid & (ask.write | (used != SLOTS)), f"p{p}_able")
        fire = wire(m, granted, f"p{p}_fire")
        reads, writes = wire(m, fire & ~ask.write, f"p{p}_reads"), wire(m, fire & ask.write, f"p{p}_writes")
        popped = wire(m, port.response.valid & port.response.ready, f"p{p}_popped")
        w, out = w_mem.write_port(), r_mem.read_port(domain="comb")
        w_slot = wire(m, Cat(turn, Const(p, 4)) if turns == 2 else Const(p, 4), f"p{p}_w_slot")
        m.d.comb += [
            port.request.ready.eq(fire),
            w.en.eq(writes), w.addr.eq(w_slot), w.data.eq(Cat(ask.data, ask.strb)),
            port.response.valid.eq(filled != 0), out.addr.eq(p * SLOTS + take), port.response.payload.eq(out.data),
        ]
        m.d.sync += [on_way.eq(Cat(reads, on_way)), used.eq(used + reads - popped), filled.eq(filled + on_way[1] - popped)]
        with m.If(reads):
            m.d.sync += put.eq(put + 1)
        with m.If(popped):
            m.d.sync += take.eq(take + 1)
        partial = 0
        if f_mem is not None:
            with m.If(writes):
                m.d.sync += turn.eq(~turn)
            words = [ask.strb.word_select(k, 8) for k in range(ROW_BYTES // 8)]
            partial = wire(m, ask.write & Cat(s.any() & ~s.all() for s in words).any(), f"p{p}_partial")
            if p == 0:
                f = f_mem.write_port()
                m.d.comb += [f.en.eq(writes), f.addr.eq(turn), f.data.eq(self.flip)]
        return {"able": able, "write": ask.write, "addr": ask.addr, "partial": partial, "w_slot": w_slot, "r_slot": p * SLOTS + put}
