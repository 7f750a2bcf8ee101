"""Processing element against the golden one: GEMM in every format and shape, other programs, two cores, errors, stalls, cycles."""
from __future__ import annotations

import cocotb
import numpy as np

from spec.assembly import assemble, instruction
from spec.dma import DmaOp
from spec.isa import CpStatus, OutFormat, Unit
from spec.layout_unit import LayoutOp
from spec.params import config
from spec.pe import DotFormat as F
from tb.lib.bench import Bench
from tb.pe.cp_programs import start
from tb.pe.dot_jobs import SCALED
from tb.pe.pe_jobs import Image, Program, run

PE = config("tiny").node.pe
MEMORY = 1 << 21


async def gemms(b: Bench, image: Image, cases) -> int:
    """The GEMMs as one program; cycles."""
    program: Program = []
    for g in cases:
        program += g.program(PE)
    cycles, _ = await run(b, PE, image.bytes, [program], bound=sum(g.bound(PE) for g in cases))
    return cycles


@cocotb.test()
async def test_formats(dut):
    b = await start(dut)
    for f in F:
        image = Image(b.rng, MEMORY)
        out = OutFormat.FLOAT32 if f is F.INT8 else OutFormat(int(f) % 3)
        await gemms(b, image, [image.gemm(19, 10, 2 * f.lanes + f.lanes // 2, f, bias=f is not F.INT8, relu=True, out=out)])
        if f in SCALED:
            for block in (16, 32):
                await gemms(b, image, [image.gemm(13, 9, f.lanes + block + 2, f, mx=block)])
    for name in ("mx", "bias", "relu", "narrow"):
        b.cover(name)


@cocotb.test()
async def test_shapes(dut):
    b = await start(dut)
    for m, n, k in ((1, 1, 1), (127, 65, 33), (5, 3, 700), (200, 2, 40), (2, 130, 64), *((int(b.rng.integers(1, 80)), int(b.rng.integers(1, 40)), int(b.rng.integers(1, 200))) for _ in range(6))):
        image = Image(b.rng, MEMORY)
        g = image.gemm(m, n, k, F.BFLOAT16, bias=n % 2 == 0)
        cycles = await gemms(b, image, [g])
        dut._log.info("%d x %d x %d: %d cycles, engine %d", m, n, k, cycles, g.bound(PE))
    image = Image(b.rng, MEMORY)
    await gemms(b, image, [image.gemm(*s, F.FLOAT8_E4M3FN) for s in ((3, 4, 5), (30, 20, 100), (1, 9, 64))])  # one after the other


@cocotb.test()
async def test_layout(dut):
    """A tile in by DMA, transposed, a slice of that out."""
    b = await start(dut)
    image = Image(b.rng, MEMORY)
    rows, columns = 37, 50
    a, out = image.put(b.rng.integers(0, 1 << 16, (rows, columns)).astype(np.uint16), 2), image.room(2 * rows * columns, 2)
    program = [
        instruction("buffer", cb=0, base=0, size=8192), instruction("buffer", cb=1, base=8192, size=8192), instruction("buffer", cb=2, base=16384, size=8192),
        instruction("dma", d=(0, 0, 4096, 4096), address=a, rows=rows, planes=1, row_bytes=2 * columns, row_memory=2 * columns, row_local=102),
        instruction("layout", a=(0, 0, 4096, 4096), d=(1, 0, 4096, 4096), kind=LayoutOp.TRANSPOSE, size=1, rows=rows, columns=columns, stride_a=102, stride_d=74),
        instruction("layout", a=(1, 0, 4096, 4096), d=(2, 0, 2048, 2048), kind=LayoutOp.COPY, size=1, rows=20, columns=rows - 3, stride_a=74, stride_d=2 * (rows - 3)),
        instruction("dma", a=(2, 0, 2048, 2048), address=out, to_memory=1, rows=1, planes=1, row_bytes=40 * (rows - 3), tag=7),
    ]
    await run(b, PE, image.bytes, [program])
    x = image.bytes[a : a + 2 * rows * columns].view(np.uint16).reshape(rows, columns)
    got = b.memory("axi").image[out : out + 40 * (rows - 3)].view(np.uint16).reshape(20, rows - 3)
    assert (got == x.T[:20, : rows - 3]).all()


@cocotb.test()
async def test_gather_and_fill(dut):
    b = await start(dut)
    image = Image(b.rng, MEMORY)
    table, index = image.put(b.rng.integers(0, 256, (50, 24), dtype=np.uint8), 8), image.put(b.rng.integers(0, 50, 30).astype(np.uint32))
    out = image.room(4096)
    program = assemble(f"""
        buffer cb=0 base=0 size=1024
        buffer cb=1 base=1024 size=4096
        dma d=cb0[0:120]+128 address={index} rows=1 planes=1 row_bytes=120
        dma b=cb0[0:120]-128 d=cb1[0:720]+1024 kind={int(DmaOp.GATHER)} address={table} rows=30 planes=1 row_bytes=24 row_memory=24 row_local=24
        dma a=cb1[0:720]-1024 address={out} to_memory=1 rows=1 planes=1 row_bytes=720
        dma kind={int(DmaOp.FILL)} address={out + 1000} to_memory=1 rows=3 planes=1 row_bytes=70 row_memory=100 fill=0x11223344
    """)
    await run(b, PE, image.bytes, [program])
    rows = image.bytes[table : table + 1200].reshape(50, 24)[image.bytes[index : index + 120].view(np.uint32)]
    assert (b.memory("axi").image[out : out + 720].reshape(30, 24) == rows).all()


@cocotb.test()
async def test_two_cores(dut):
    """A GEMM on core 0, tiles moved on core 1 at the same time."""
    b = await start(dut)
    image = Image(b.rng, MEMORY)
    one = image.gemm(40, 12, 100, F.BFLOAT16)
    source, to = image.put(b.rng.integers(0, 256, 8192, dtype=np.uint8)), image.room(8192)
    two = [instruction("buffer", cb=8, base=PE.local_bytes - 2048, size=1024), instruction("buffer", cb=9, base=PE.local_bytes - 1024, size=1024)]
    for k in range(12):
        two += [instruction("dma", d=(8, 0, 512, 512), address=source + 512 * k, rows=1, planes=1, row_bytes=512),
                instruction("layout", a=(8, 0, 512, 512), d=(9, 0, 512, 512), kind=LayoutOp.TRANSPOSE, size=0, rows=16, columns=32, stride_a=32, stride_d=16),
                instruction("dma", a=(9, 0, 512, 512), address=to + 512 * k, to_memory=1, rows=1, planes=1, row_bytes=512)]
    await run(b, PE, image.bytes, [one.program(PE), two], bound=one.bound(PE))
    tiles = image.bytes[source : source + 12 * 512].reshape(12, 16, 32)
    assert (b.memory("axi").image[to : to + 12 * 512].reshape(12, 32, 16) == tiles.transpose(0, 2, 1)).all()


@cocotb.test()
async def test_errors(dut):
    b = await start(dut)
    image = Image(b.rng, MEMORY)
    good = image.gemm(9, 5, 40, F.BFLOAT16)
    beyond = instruction("dma", d=(0, 0, 64, 64), address=MEMORY - 32, rows=1, planes=1, row_bytes=64, tag=9)
    cases = {
        "memory": [instruction("buffer", cb=0, base=0, size=64), beyond],
        "unit": [instruction("buffer", cb=0, base=0, size=64), instruction("layout", a=(0, 0, 0, 0), d=(0, 0, 0, 0), kind=3, rows=1, columns=1, tag=9)],
        "absent": [instruction("nop") | dict(unit=int(Unit.SFU), tag=9)],
    }
    for name, bad in cases.items():
        await b.reset()
        _, done = await run(b, PE, image.bytes, [[*bad, *good.program(PE)]], exact=False)
        ends = {c["tag"]: c for c in done if c["tag"]}
        assert ends[9]["status"] == CpStatus.UNIT and ends[9]["info"] & 0xFF, f"{name}: {ends[9]}"
        assert ends[0xFFFF]["status"] == CpStatus.FLUSHED and int(b.pin("failed").value) == 1
        b.cover(name)
        b.pin("clear").value = 1
        await b.wait_cycles(2)
        b.pin("clear").value = 0
        await run(b, PE, image.bytes, [good.program(PE)], bound=good.bound(PE))


@cocotb.test()
async def test_stalls(dut):
    b = await start(dut)
    for latency, stall in ((1, 0.0), (100, 0.0), (30, 0.5), (5, 0.9)):
        b.stalls(stall)
        b.memory("axi").latency = latency
        image = Image(b.rng, MEMORY)
        await gemms(b, image, [image.gemm(33, 11, 70, F.FLOAT16, bias=True), image.gemm(20, 9, 130, F.FLOAT8_E5M2, mx=32)])
    b.stalls(0)
    b.memory("axi").latency = 1
    b.cover("stalls")


@cocotb.test()
async def test_rate(dut):
    """Behind 100 cycles of latency; what is beyond the bound: the first blocks, latencies, the last block's way out."""
    b = await start(dut)
    b.memory("axi").latency = 100
    for f, mx in ((F.BFLOAT16, 0), (F.FLOAT8_E4M3FN, 0), (F.FLOAT8_E4M3FN, 32)):
        image = Image(b.rng, MEMORY)
        g = image.gemm(128, 64, 8 * f.lanes, f, mx=mx)
        cycles = await gemms(b, image, [g])
        dut._log.info("%s mx %d 128 x 64 x %d: %d cycles, engine %d, %.4f", f.name, mx, 8 * f.lanes, cycles, g.bound(PE), g.bound(PE) / cycles)
        assert g.bound(PE) >= 0.8 * cycles, f"{f.name}: {g.bound(PE)} of {cycles}"
