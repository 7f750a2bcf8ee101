"""CRC parameter object: Python against bit-serial division and zlib, hardware against Python."""
from __future__ import annotations

import random
import zlib

import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from rtl.common.crc import CRC32, Crc

# (parameters, CRC of "123456789"), from the catalogue of parametrised CRC algorithms (reveng)
CATALOGUE = {
    "CRC-32/ISO-HDLC": (CRC32, 0xCBF43926),
    "CRC-32/ISCSI": (Crc(width=32, polynomial=0x1EDC6F41, init=0xFFFFFFFF, reflect=True, xorout=0xFFFFFFFF), 0xE3069283),
    "CRC-32/BZIP2": (Crc(width=32, polynomial=0x04C11DB7, init=0xFFFFFFFF, reflect=False, xorout=0xFFFFFFFF), 0xFC891918),
    "CRC-16/IBM-3740": (Crc(width=16, polynomial=0x1021, init=0xFFFF, reflect=False, xorout=0), 0x29B1),
    "CRC-16/KERMIT": (Crc(width=16, polynomial=0x1021, init=0, reflect=True, xorout=0), 0x2189),
    "CRC-8/SMBUS": (Crc(width=8, polynomial=0x07, init=0, reflect=False, xorout=0), 0xF4),
    "CRC-24/OPENPGP": (Crc(width=24, polynomial=0x864CFB, init=0xB704CE, reflect=False, xorout=0), 0x21CF02),
}
every = pytest.mark.parametrize(("crc", "check"), list(CATALOGUE.values()), ids=list(CATALOGUE))


def divide(crc: Crc, data: bytes) -> int:
    """The CRC by its definition: one bit at a time through a left-shifting register."""
    state = int(f"{crc.init:0{crc.width}b}"[::-1], 2) if crc.reflect else crc.init
    for byte in data:
        for i in range(8):
            bit = byte >> (i if crc.reflect else 7 - i) & 1
            top = state >> crc.width - 1 & 1
            state = (state << 1) % (1 << crc.width) ^ (crc.polynomial if top ^ bit else 0)
    return (int(f"{state:0{crc.width}b}"[::-1], 2) if crc.reflect else state) ^ crc.xorout


@every
def test_catalogue(crc, check):
    assert crc.compute(b"123456789") == check == divide(crc, b"123456789")


@every
def test_definition(crc, check):
    rng = random.Random(check)
    for n in (0, 1, 2, 3, 7, 64, 65):
        data = rng.randbytes(n)
        assert crc.compute(data) == divide(crc, data)
        if crc == CRC32:
            assert crc.compute(data) == zlib.crc32(data)


@every
def test_zero_bytes_are_undone_and_skipped(crc, check):
    rng = random.Random(check)
    for n in (0, 1, 2, 5, 62, 63, 64, 1000):
        state = rng.getrandbits(crc.width)
        assert crc.rewound(crc.update(state, bytes(n)), n) == state
        after = 0
        for j, column in enumerate(crc.advance(8 * n)):
            after ^= column if state >> j & 1 else 0
        assert after == crc.update(state, bytes(n))


@every
def test_residue(crc, check):
    rng = random.Random(check)
    for padding in (0, 1, 2, 62):
        for n in (0, 1, 9):
            data = rng.randbytes(n)
            assert crc.update(crc.init, data + crc.to_wire(crc.compute(data)) + bytes(padding)) == crc.residue(padding)


def simulate(m: Module, check) -> None:
    sim = Simulator(m)
    sim.add_testbench(check)
    sim.run()


@every
@pytest.mark.parametrize("nbytes", [1, 3, 8, 64])
def test_step(crc, check, nbytes):
    m, state, data, after = Module(), Signal(crc.width), Signal(8 * nbytes), Signal(crc.width)
    m.d.comb += after.eq(crc.step(state, data))
    rng = random.Random(check + nbytes)

    async def bench(ctx):
        for _ in range(20):
            before, word = rng.getrandbits(crc.width), rng.randbytes(nbytes)
            ctx.set(state, before)
            ctx.set(data, int.from_bytes(word, "little"))
            assert ctx.get(after) == crc.update(before, word)

    simulate(m, bench)


@every
@pytest.mark.parametrize(("unit", "always", "bits"), [(1, 0, 6), (4, 2, 4), (3, 0, 2)])
def test_rewind(crc, check, unit, always, bits):
    m, state, count, before = Module(), Signal(crc.width), Signal(bits), Signal(crc.width)
    m.d.comb += before.eq(crc.rewind(m, state, count, unit=unit, always=always))
    rng = random.Random(check)

    async def bench(ctx):
        for n in range(1 << bits):
            start = rng.getrandbits(crc.width)
            ctx.set(count, n)
            ctx.set(state, crc.update(start, bytes(unit * n + always)))
            assert ctx.get(before) == start

    simulate(m, bench)


def test_last_word_of_every_size():
    """Pad, step, rewind: how a message of any length ends in a word of 16 bytes."""
    m, state, data, spare, out = Module(), Signal(32), Signal(128), Signal(4), Signal(32)
    padded = Signal(32)
    m.d.comb += [padded.eq(CRC32.step(state, data)), out.eq(CRC32.rewind(m, padded, spare) ^ CRC32.xorout)]
    rng = random.Random(3)

    async def bench(ctx):
        for n in range(1, 17):
            head, tail = rng.randbytes(32), rng.randbytes(n)
            ctx.set(state, CRC32.update(CRC32.init, head))
            ctx.set(data, int.from_bytes(tail, "little"))
            ctx.set(spare, 16 - n)
            assert ctx.get(out) == zlib.crc32(head + tail)

    simulate(m, bench)


def test_refusals():
    with pytest.raises(ValueError, match="constant term"):
        Crc(width=8, polynomial=0x06, init=0, reflect=False, xorout=0)
    with pytest.raises(ValueError, match="Crc.width = 4: expected 8 or more"):
        Crc(width=4, polynomial=0x3, init=0, reflect=False, xorout=0)
    with pytest.raises(ValueError, match="Crc.init = 0x100 does not fit in 8 bits"):
        Crc(width=8, polynomial=0x07, init=0x100, reflect=False, xorout=0)
    with pytest.raises(ValueError, match="data of 12 bits, expected a positive multiple of 8"):
        CRC32.step(Signal(32), Signal(12))
