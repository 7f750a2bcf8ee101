"""WQEs and lists of them for the message engine's benches."""
from __future__ import annotations

import numpy as np

from spec.wqe import Compare, DType, Flag, Op, ReduceOp
from tb.nic.me_check import NIC_OPS, NMC_OPS
from tb.nic.me_driver import FLAGS, MeDriver, set_word, wait_word

S = Flag.SIGNALED
TIMINGS = [  # memory latency, mask of the units' delay, stalls
    {"latency": 1, "delay": 0}, {"latency": 4, "delay": 63}, {"latency": 30, "delay": 127, "stall": 0.3}, {"latency": 3, "delay": 7, "stall": 0.6},
]


def number(rng, bits: int) -> int:
    return int(rng.integers(1 << bits, dtype=np.uint64))


def unit_wqe(rng, op: Op, **more) -> dict:
    """A WQE for NIC or near-memory compute with every field random (no error asked of the stand-in)."""
    w = {k: number(rng, n) for k, n in (("wr_id", 32), ("qpn", 24), ("length", 32), ("lkey", 32), ("rkey", 32), ("imm", 32), ("scale", 32), ("cmp", 8))}
    w |= {k: number(rng, 48) for k in ("addr_a", "addr_b", "addr_d")}
    rop, dtype = int(rng.choice(list(ReduceOp))), int(rng.choice(list(DType)))
    return w | {"opcode": op, "rop": rop, "dtype": dtype, "flags": 0} | more


def random_flags(rng, d: MeDriver) -> dict:
    """Ordering flags: mostly none, each often enough; wqe_sync also beyond the window."""
    flags, back = 0, 0
    for flag, bin_ in ((Flag.FENCE, "fence"), (Flag.RX_SYNC, "rx_sync"), (Flag.SYNC, "sync"), (S, "signaled"), (Flag.EVENT, "event")):
        if rng.random() < (0.4 if flag == S else 0.1):
            flags |= flag
            d.b.cover(bin_)
    if rng.random() < 0.3:
        back = int(rng.integers(1, 6) if rng.random() < 0.7 else rng.integers(1, 256))
        d.b.cover("wqe_sync" if back < d.me.window else "wqe_sync beyond window")
    return {"flags": flags, "wqe_sync": back}


def random_program(d: MeDriver, q: int, n: int, words: dict[int, int], errors: float = 0) -> list[dict]:
    """`n` WQEs. `words`: word -> value of every SET so far in this and lower queues; WAITs wait for these only, so none is for ever."""
    rng, out, waited = d.b.rng, [], set()
    for _ in range(n):
        f = random_flags(rng, d)
        kind = rng.random()
        free = sorted(set(words) - waited)
        if kind < 0.1:
            out.append(dict(opcode=Op.NOOP, wr_id=number(rng, 32), **f))
        elif kind < 0.2:
            k = len(d.words)
            d.words.append(k)
            words[k] = number(rng, 32) or 1
            out.append(set_word(k, words[k], wr_id=number(rng, 32), **f))
        elif kind < 0.27 and free and not errors:
            k = int(rng.choice(free))
            waited.add(k)
            cmp, value = [(Compare.EQ, words[k]), (Compare.NE, 0), (Compare.GE, words[k])][int(rng.integers(3))]
            out.append(wait_word(k, cmp, value, wr_id=number(rng, 32), **f))
        else:
            op = Op(int(rng.choice(NIC_OPS + NMC_OPS)))
            w = unit_wqe(rng, op, **f)
            w["flags"] |= Flag.SCALE if rng.random() < 0.2 else 0
            if rng.random() < errors:
                w["addr_d" if op in (Op.RECV, Op.READ) else "addr_a"] |= int(rng.choice([1, 4, 10, 12, 33])) << 48
            out.append(w)
        if rng.random() < errors:
            out[-1] |= refusals()[int(rng.integers(len(refusals())))]
    return out


def refusals() -> list[dict]:
    """Fields each of which makes a WQE one the engine must refuse."""
    return [
        {"opcode": max(Op) + 1}, {"opcode": 255}, {"opcode": Op.REDUCE, "rop": 3}, {"opcode": Op.REDUCE, "dtype": 4}, {"opcode": Op.REDUCE, "dtype": 15, "rop": 15},
        {"opcode": Op.WAIT, "cmp": 4}, {"opcode": Op.WAIT, "cmp": 0, "addr_a": FLAGS + 2}, {"opcode": Op.WAIT, "cmp": 0, "addr_a": FLAGS | 1 << 32},
        {"opcode": Op.SET, "addr_d": FLAGS + 1}, {"opcode": Op.SET, "addr_d": FLAGS | 1 << 63}, {"_reserved": 1}, {"_reserved": 1 << 63},
        {"flags": 0x40}, {"flags": 0x80 | S},
    ]
