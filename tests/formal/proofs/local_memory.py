"""Local memory: arbitration of its banks and the answers on their way, at the members of its ports."""
from __future__ import annotations

from dataclasses import replace
from functools import partial

from amaranth.hdl import Mux, Signal
from amaranth.utils import exact_log2

from rtl.pe.local_memory import SLOTS, LocalMemory
from spec.params import PeParams
from tests.formal.design import Harness
from tests.formal.proof import Proof
from tests.formal.queue_model import streams_kept


def local_memory(ports: int, banks: int, ecc: bool) -> Harness:
    pe = replace(PeParams(), local_bytes=4096, local_banks=banks, ecc=ecc)
    block = LocalMemory(pe, ports)
    h = Harness(local=block)
    low = exact_log2(banks)
    sides = [getattr(block, f"p{p}") for p in range(ports)]
    fires = [h.wire(f"fire_{p}", s.request.valid & s.request.ready) for p, s in enumerate(sides)]
    banked = [h.wire(f"bank_of_{p}", s.request.payload.addr[:low]) for p, s in enumerate(sides)]
    for p, side in enumerate(sides):
        streams_kept(h, f"p{p}", side.request)
        h.prove(f"asked_{p}", ~side.request.ready | side.request.valid)
        for q in range(p):
            h.prove(f"one_a_bank_{p}{q}", ~(fires[p] & fires[q]) | (banked[p] != banked[q]))

        # Answers: as many as reads, never more on their way than there are slots.
        read = fires[p] & ~side.request.payload.write
        taken = side.response.valid & side.response.ready
        owed = Signal(range(SLOTS + 2), name=f"owed_{p}")
        h.m.d.sync += owed.eq(owed + read - taken)
        used, filled, way = (h.inside(f"local.p{p}_{s}") for s in ("used", "filled", "on_way"))
        put, take = h.inside(f"local.p{p}_put"), h.inside(f"local.p{p}_take")
        h.prove(f"slots_{p}", (owed <= SLOTS) & (used == owed))
        h.prove(f"answers_{p}", ~side.response.valid | (owed > 0))
        h.prove(f"on_the_way_{p}", filled + way[0] + way[1] == used)
        h.prove(f"next_slot_{p}", (take + used)[:3] == put)
        h.prove(f"answer_stays_{p}", ~h.past(side.response.valid & ~side.response.ready) | side.response.valid)
        h.cover(f"all_slots_{p}", owed == SLOTS)

        # One that asks and has room for the answer is passed over at most ports - 1 times by those that its bank serves.
        able = h.wire(f"able_{p}", side.request.valid & (side.request.payload.write | (owed != SLOTS)))
        passed = Signal(range(ports + 1), name=f"passed_{p}")
        others = h.wire(f"others_{p}", sum((fires[q] & (banked[q] == banked[p]) for q in range(ports) if q != p), start=0))
        with h.m.If(~able | fires[p]):
            h.m.d.sync += passed.eq(0)
        with h.m.Elif(others.any()):
            h.m.d.sync += passed.eq(passed + 1)
        if ports > 1:
            ahead = 0
            for b in range(banks):
                above = h.inside(f"local.b{b}_above")
                count = sum(above[k] for k in range(ports))
                ahead = Mux(banked[p] == b, Mux(above[p], p + count - ports, p + count), ahead)
            h.prove(f"passed_over_{p}", passed + h.wire(f"ahead_{p}", ahead) [: ports.bit_length() + 1] <= ports - 1)
            h.cover(f"waits_longest_{p}", (passed == ports - 1) & fires[p])
    for b in range(banks):
        if ports > 1:
            below = h.wire(f"below_{b}", ~h.inside(f"local.b{b}_above"))
            h.prove(f"turn_{b}", (below & (below + 1)) == 0)
        if ecc:
            mine = [s.request.valid & (banked[p] == b) for p, s in enumerate(sides)]
            h.prove(f"two_cycles_{b}", ~h.inside(f"local.b{b}_partial") | ~sum((f & m for f, m in zip(fires, mine)), start=0).any())
    return h


SAYS = "at most one request a bank and cycle, one that asked; passed over at most {} times; as many answers as reads, no slot used twice"
PROOFS = [
    Proof(name=f"local-{ports}x{banks}{'-ecc' if ecc else ''}", block="rtl.pe.local_memory", says=SAYS.format(ports - 1), induction=1, cover=16,
          build=partial(local_memory, ports, banks, ecc))
    for ports, banks, ecc in ((3, 2, False), (3, 2, True), (5, 4, False))
]
