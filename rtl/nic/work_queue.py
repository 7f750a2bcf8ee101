"""One work queue of the message engine: doorbell, fetch, ordering, window, flush. The WQEs' 64 bytes are stored by the engine.

The ring has `size` (a power of two) WQEs of 64 bytes from `base`; `tail` counts the WQEs posted, `head` those retired, both
modulo 2^32. Positions are counted from 0; WQE i lies at ``base + (i mod size) * 64``.

Rules
    1. Fetch: never past `tail`; at most `prefetch` WQEs are asked for and not yet started; one burst takes what is posted, fits,
       and lies before the end of the ring and of the 4 KiB page. No fetch while `enable` is 0 or `size` is 0.
    2. A WQE starts when it is the next one, fewer than `window` are started and not retired, its unit has room, and
         wqe_sync k   the WQE k places back is done (k = 0, or no such WQE: nothing to wait for; k >= window: retired, so done),
         rx_sync      no earlier RECV is outstanding,     sync   no earlier WQE is outstanding,
         and the last started WQE with `fence`, or WAIT, is done: both hold everything behind them.
    3. Error: from the cycle after a WQE was found to have failed (at once when it fails as it starts) no later WQE runs: each
       "starts" as LOCAL with WR_FLUSH_ERR, without regard to its flags, until a reset. Those outstanding finish normally, but a WAIT, which might
       wait for ever, ends in WR_FLUSH_ERR.
    4. A WQE whose read failed ends in MEM_ERR; it and all later ones are `blind`: reported with wr_id, opcode and qpn 0.
    5. Retirement is in order: `retire_want` while the oldest is done. `head` counts retired WQEs.
    6. Reset: stops fetching and starting, ends a WAIT with WR_FLUSH_ERR, and when everything started is retired and no read is in
       flight (at once when idle) clears tail, head and error. Posted and not started WQEs are forgotten. Until then `state` bit 2.
    7. WAIT: first poll at once, then one every `poll_interval` cycles (later when memory is slower), one in flight. It ends in
       SUCCESS with the first poll that compares; in MEM_ERR when a poll fails; in WAIT_TIMEOUT when `wait_timeout` cycles (not 0)
       have passed since its start and the last of at least one poll did not compare.

Parameters: `me` (window, prefetch, poll_interval), `mem` (addr_width).
Members: write_* / wdata registers; base, size, tail, head, state (bit 0 error, 1 held by a dependency or a WAIT, 2 reset pending);
    read_* the wanted read, taken with `read_take`; beat_* a beat of the answers, which come in the order of the reads: `beat_wqe`
    tells whether it is a WQE and `beat_entry` where it goes, `lane` the word of a poll; start_* the next WQE, taken with
    `start_take`; wait_load the WAIT's operands, the cycle after it was taken; end_* what is done; wait_end / wait_take; retire_*.
Latency: tail to read_want 1 cycle; beat to start_want 1; end_* to start_want and retire_want 1; poll beat to wait_end 2.
Interval: one WQE a cycle.

Assumptions (checked in tb/nic/test_me.py)
    A1. ``tail - head <= size`` and `base` a multiple of 64 (software).        test_ring_wrap posts up to exactly `size`
    A2. Reads are answered, in order.                                           test_slow_memory
    A3. Units answer each WQE once.                                             test_random_lists counts every completion
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from rtl.common.axi4 import BOUNDARY
from rtl.common.block import Block
from rtl.nic.wqe_decode import CTRL, Unit
from spec.params import MemParams, MeParams
from spec.wqe import WQE_BYTES, Compare, Status

WQE_SHIFT = exact_log2(WQE_BYTES)
PAGE_SHIFT = exact_log2(BOUNDARY)
BURST_MAX = BOUNDARY // WQE_BYTES


def start_layout(me: MeParams, mem: MemParams) -> data.StructLayout:
    """The WQE a queue wants to start: `slot` in the window, `entry` in the prefetch store, `addr` of the WQE itself."""
    return data.StructLayout({
        "unit": 3, "status": 8, "blind": 1, "slot": exact_log2(me.window), "entry": exact_log2(me.prefetch),
        "addr": mem.addr_width,
    })


def end_layout(me: MeParams) -> data.StructLayout:
    return data.StructLayout({"valid": 1, "error": 1, "slot": exact_log2(me.window)})


def wait_layout(mem: MemParams) -> data.StructLayout:
    return data.StructLayout({"valid": 1, "addr": mem.addr_width, "imm": 32, "cmp": 2})


class WorkQueue(Block):
    def __init__(self, me: MeParams, mem: MemParams):
        self.me, self.mem = me, mem
        slot_bits, entry_bits = exact_log2(me.window), exact_log2(me.prefetch)
        end = end_layout(me)
        super().__init__({
            "enable": In(1), "wait_timeout": In(32),
            "write_base": In(1), "write_size": In(1), "write_tail": In(1), "write_reset": In(1), "wdata": In(32),
            "base": Out(32), "size": Out(32), "tail": Out(32), "head": Out(32), "state": Out(3),
            "read_want": Out(1), "read_addr": Out(mem.addr_width), "read_len": Out(8), "read_take": In(1),
            "beat_valid": In(1), "beat_last": In(1), "beat_error": In(1), "beat_ctrl": In(CTRL), "beat_word": In(32),
            "beat_wqe": Out(1), "beat_entry": Out(entry_bits), "lane": Out(4),
            "room_nic": In(1), "room_nmc": In(1), "room_set": In(1),
            "start_want": Out(1), "start": Out(start_layout(me, mem)), "start_take": In(1),
            "wait_load": In(wait_layout(mem)),
            "end_nic": In(end), "end_nmc": In(end), "end_set": In(end), "end_local": In(end),
            "wait_end": Out(1), "wait_slot": Out(slot_bits), "wait_status": Out(8), "wait_take": In(1),
            "retire_want": Out(1), "retire_slot": Out(slot_bits), "retire_take": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        self._mask = Signal(32)
        self._fetch, self._issue = Signal(32), Signal(32)
        self._received = Signal(exact_log2(self.me.prefetch) + 1)
        self._error, self._resetting = Signal(), Signal()
        m.d.comb += self._mask.eq(self.size - 1)
        polling, waiting = self._wait(m)
        idle = self._fetches(m, polling)
        busy = self._starts(m, waiting)

        cleared = Signal()
        m.d.comb += cleared.eq(self._resetting & idle & ~busy.any() & (self.head == self._issue))
        with m.If(self.write_base):
            m.d.sync += self.base.eq(self.wdata)
        with m.If(self.write_size):
            m.d.sync += self.size.eq(self.wdata)
        with m.If(self.write_tail):
            m.d.sync += self.tail.eq(self.wdata)
        with m.If(self.write_reset):
            m.d.sync += self._resetting.eq(1)
        with m.If(cleared):
            m.d.sync += [
                self._resetting.eq(0), self._error.eq(0), self._blind.eq(0), self._barrier.eq(0),
                self.tail.eq(0), self.head.eq(0), self._fetch.eq(0), self._issue.eq(0), self._received.eq(0),
            ]
        return m

    def _wait(self, m: Module):
        """Polls of a WAIT. Returns (a poll is in flight, a WAIT runs)."""
        me = self.me
        active, polling, polled, looked = Signal(), Signal(), Signal(), Signal()
        addr, imm, cmp, word = Signal(self.mem.addr_width), Signal(32), Signal(2), Signal(32)
        word_error, holds, late = Signal(), Signal(), Signal()
        timer, elapsed = Signal(range(me.poll_interval)), Signal(32)
        give_up = self._resetting | self._error
        self._poll_want, self._poll_addr, self._poll_take, self._poll_beat = Signal(), addr, Signal(), Signal()

        with m.If(active):
            m.d.sync += elapsed.eq(elapsed + 1)
        with m.If(timer != 0):
            m.d.sync += timer.eq(timer - 1)
        with m.If(self._poll_take):
            m.d.sync += [polling.eq(1), timer.eq(me.poll_interval - 1)]
        m.d.sync += looked.eq(0)
        with m.If(self._poll_beat):
            m.d.sync += [looked.eq(1), polling.eq(0), polled.eq(1)]
            m.d.sync += [word.eq(self.beat_word), word_error.eq(self.beat_error)]
        with m.Switch(cmp):
            with m.Case(Compare.EQ):
                m.d.comb += holds.eq(word == imm)
            with m.Case(Compare.NE):
                m.d.comb += holds.eq(word != imm)
            with m.Case(Compare.GE):
                m.d.comb += holds.eq(word >= imm)
            with m.Case(Compare.LT):
                m.d.comb += holds.eq(word < imm)
        m.d.comb += [
            late.eq((self.wait_timeout != 0) & (elapsed >= self.wait_timeout)),
            self._poll_want.eq(active & ~polling & ~looked & (timer == 0) & ~(late & polled) & ~give_up),
            self.lane.eq(addr[2:6]),
        ]
        with m.If(active & ~polling):
            with m.If(looked & word_error):
                m.d.sync += [active.eq(0), self.wait_end.eq(1), self.wait_status.eq(Status.MEM_ERR)]
            with m.Elif(looked & holds):
                m.d.sync += [active.eq(0), self.wait_end.eq(1), self.wait_status.eq(Status.SUCCESS)]
            with m.Elif(give_up):
                m.d.sync += [active.eq(0), self.wait_end.eq(1), self.wait_status.eq(Status.WR_FLUSH_ERR)]
            with m.Elif(late & polled):
                m.d.sync += [active.eq(0), self.wait_end.eq(1), self.wait_status.eq(Status.WAIT_TIMEOUT)]
        with m.If(self.wait_take):
            m.d.sync += self.wait_end.eq(0)
        load = self.wait_load
        with m.If(load.valid):
            m.d.sync += [
                active.eq(1), polled.eq(0), elapsed.eq(0), timer.eq(0),
                addr.eq(load.addr), imm.eq(load.imm), cmp.eq(load.cmp),
            ]
        return polling, active

    def _fetches(self, m: Module, polling: Signal) -> Signal:
        """Reads of WQEs and of WAIT words. Returns: no read is in flight."""
        prefetch, width = self.me.prefetch, self.mem.addr_width
        count = range(prefetch + 1)
        place, posted, to_wrap, addr = Signal(32), Signal(32), Signal(32), Signal(width)
        free, burst, to_page = Signal(count), Signal(count), Signal(range(BURST_MAX + 1))
        want = Signal()
        m.d.comb += [
            place.eq(self._fetch & self._mask),
            posted.eq(self.tail - self._fetch),
            to_wrap.eq(self.size - place),
            addr.eq(Cat(Const(0, WQE_SHIFT), self.base[WQE_SHIFT:] + place)),
            to_page.eq(BURST_MAX - addr[WQE_SHIFT:PAGE_SHIFT]),
            free.eq(prefetch - (self._fetch - self._issue)[: len(free)]),
            want.eq(self.enable & (self.size != 0) & ~self._resetting & (posted != 0) & (free != 0)),
        ]
        least = free
        for limit in (posted, to_wrap, to_page):
            smaller = Signal(count)
            m.d.comb += smaller.eq(Mux(limit < least, limit, least))
            least = smaller
        m.d.comb += burst.eq(least)

        m.d.comb += [
            self.read_want.eq(self._poll_want | want),
            self.read_addr.eq(Mux(self._poll_want, Cat(Const(0, 6), self._poll_addr[6:]), addr)),
            self.read_len.eq(Mux(self._poll_want, 0, burst - 1)),
            self._poll_take.eq(self.read_take & self._poll_want),
        ]
        fetch_take = Signal()
        m.d.comb += fetch_take.eq(self.read_take & ~self._poll_want)
        with m.If(fetch_take):
            m.d.sync += self._fetch.eq(self._fetch + burst)

        # Answers come in the order of the reads: count the bursts ahead of the poll.
        bursts, ahead = Signal(count), Signal(count)
        burst_end = Signal()
        m.d.comb += [
            self._poll_beat.eq(self.beat_valid & polling & (ahead == 0)),
            self.beat_wqe.eq(~(polling & (ahead == 0))),
            self.beat_entry.eq(self._received[: len(self.beat_entry)]),
            burst_end.eq(self.beat_valid & self.beat_wqe & self.beat_last),
        ]
        m.d.sync += bursts.eq(bursts + fetch_take - burst_end)
        with m.If(self._poll_take):
            m.d.sync += ahead.eq(bursts - burst_end)
        with m.Elif(burst_end & (ahead != 0)):
            m.d.sync += ahead.eq(ahead - 1)
        with m.If(self.beat_valid & self.beat_wqe):
            m.d.sync += self._received.eq(self._received + 1)
        return (bursts == 0) & ~polling

    def _starts(self, m: Module, waiting: Signal) -> Signal:
        """Ordering and window. Returns the vector of started and not done WQEs."""
        me = self.me
        window, slots = me.window, range(me.window)
        m.submodules.ctrl = ctrl = Memory(shape=CTRL, depth=me.prefetch, init=[])
        write, read = ctrl.write_port(), ctrl.read_port(domain="comb")
        entry_bits, next_ = len(self.beat_entry), read.data
        valid, ordered, room = Signal(), Signal(), Signal()
        busy, busy_recv = Signal(window), Signal(window)
        slot, back, barrier_slot = Signal(slots), Signal(slots), Signal(slots)
        self._barrier, self._blind = Signal(), Signal()
        m.d.comb += [
            write.addr.eq(self.beat_entry), write.data.eq(self.beat_ctrl), write.en.eq(self.beat_valid & self.beat_wqe),
            read.addr.eq(self._issue[:entry_bits]),
            valid.eq(self._received != self._issue[: entry_bits + 1]),
            slot.eq(self._issue),
            back.eq(slot - next_.wqe_sync),
        ]
        behind_window = next_.wqe_sync >= window if window < 256 else Const(0)
        m.d.comb += ordered.eq(
            ~(self._barrier & busy.bit_select(barrier_slot, 1))
            & ~(next_.rx_sync & busy_recv.any())
            & ~(next_.sync & busy.any())
            & ((next_.wqe_sync == 0) | behind_window | ~busy.bit_select(back, 1))
        )
        m.d.comb += room.eq(1)
        for unit, port in ((Unit.NIC, self.room_nic), (Unit.NMC, self.room_nmc), (Unit.SET, self.room_set)):
            with m.If(next_.unit == unit):
                m.d.comb += room.eq(port)
        fits = Signal()
        m.d.comb += [
            fits.eq((self._issue - self.head)[: len(slot) + 1] != window),
            self.start_want.eq(valid & fits & ~self._resetting & (self._error | (ordered & room))),
            self.start.slot.eq(slot),
            self.start.entry.eq(self._issue[:entry_bits]),
            self.start.addr.eq(Cat(Const(0, WQE_SHIFT), self.base[WQE_SHIFT:] + (self._issue & self._mask))),
            self.start.blind.eq(self._blind | next_.bad),
            self.start.unit.eq(next_.unit),
            self.start.status.eq(next_.status),
            self.state.eq(Cat(self._error, waiting | (valid & ~self._error & ~ordered), self._resetting)),
        ]
        with m.If(self._error):
            m.d.comb += [self.start.unit.eq(Unit.LOCAL), self.start.status.eq(Status.WR_FLUSH_ERR)]

        done, begun = Signal(window), Signal(window)
        ends = [(e.valid, e.slot) for e in (self.end_nic, self.end_nmc, self.end_set, self.end_local)]
        for at, on in (*ends, (self.wait_take, self.wait_slot)):
            with m.If(at):
                m.d.comb += done.bit_select(on, 1).eq(1)
        with m.If(self.start_take):
            m.d.comb += begun.bit_select(slot, 1).eq(1)
            m.d.sync += self._issue.eq(self._issue + 1)
            with m.If(~self._error):
                m.d.sync += self._barrier.eq(next_.fence | (next_.unit == Unit.WAIT))
                m.d.sync += barrier_slot.eq(slot)
                with m.If(next_.unit == Unit.WAIT):
                    m.d.sync += self.wait_slot.eq(slot)
            with m.If(next_.bad):
                m.d.sync += self._blind.eq(1)
        m.d.sync += busy.eq((busy & ~done) | begun)
        m.d.sync += busy_recv.eq((busy_recv & ~done) | Mux(next_.recv & ~self._error, begun, 0))
        failed = self.wait_take & (self.wait_status != 0)
        for e in (self.end_nic, self.end_nmc, self.end_set):
            failed |= e.valid & e.error
        with m.If(failed | (self.start_take & (self.start.status != 0))):
            m.d.sync += self._error.eq(1)

        m.d.comb += [
            self.retire_slot.eq(self.head[: len(slot)]),
            self.retire_want.eq((self.head != self._issue) & ~busy.bit_select(self.retire_slot, 1)),
        ]
        with m.If(self.retire_take):
            m.d.sync += self.head.eq(self.head + 1)
        return busy
