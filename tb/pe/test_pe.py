"""Processing element against the golden one: GEMM in every format and shape, other programs, two cores, errors, stalls, cycles."""
from __future__ import annotations

import cocotb
import numpy as np

from golden.numeric import convert
from golden.numeric.mx import encode
from golden.pe import sfu_rows
from golden.pe.dot_product import dot_product
from spec.assembly import assemble, instruction
from spec.dma import DmaOp
from spec.isa import CpStatus, OutFormat, UnitStatus
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
    cycles, _ = await run(b, PE, image.bytes, [program], bound=sum(g.slots(PE) for g in cases))
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
        dut._log.info("%d x %d x %d: %d cycles, engine %d", m, n, k, cycles, g.slots(PE))
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
async def test_softmax(dut):
    """Rows in by DMA, six instructions of the special function unit, rows out."""
    b = await start(dut)
    image = Image(b.rng, MEMORY)
    rows, columns, narrow, wide = 24, 43, 128, 192
    x = convert.narrow(b.rng.normal(0, 3, (rows, columns)).astype(np.float32).view(np.uint32), "bfloat16")
    source, out = image.put(x), image.room(2 * rows * columns)
    shape = f"rows={rows} columns={columns}"
    program = assemble(f"""
        buffer cb=0 base=0 size=4096
        buffer cb=1 base=4096 size=128
        buffer cb=2 base=8192 size=8192
        buffer cb=3 base=16384 size=8192
        buffer cb=4 base=24576 size=4096
        buffer cb=5 base=4224 size=128
        buffer cb=6 base=4352 size=128
        dma d=cb0[0:{rows * narrow}]+{rows * narrow} address={source} rows={rows} planes=1 row_bytes={2 * columns} row_memory={2 * columns} row_local={narrow}
        sfu.row_max a=cb0[0:{rows * narrow}] d=cb1[0:96]+96 format_a=bfloat16 {shape} stride_a={narrow} stride_d=4
        sfu.sub a=cb0[0:{rows * narrow}]-{rows * narrow} b=cb1[0:96]-96 d=cb2[0:{rows * wide}]+{rows * wide} format_a=bfloat16 source_b=column {shape} stride_a={narrow} stride_b=4 stride_d={wide}
        sfu.exp a=cb2[0:{rows * wide}]-{rows * wide} d=cb3[0:{rows * wide}]+{rows * wide} {shape} stride_a={wide} stride_d={wide}
        sfu.row_sum a=cb3[0:{rows * wide}] d=cb5[0:96]+96 {shape} stride_a={wide} stride_d=4
        sfu.reciprocal a=cb5[0:96]-96 d=cb6[0:96]+96 rows=1 columns={rows}
        sfu.mul a=cb3[0:{rows * wide}]-{rows * wide} b=cb6[0:96]-96 d=cb4[0:{rows * narrow}]+{rows * narrow} format_d=bfloat16 source_b=column {shape} stride_a={wide} stride_b=4 stride_d={narrow}
        dma a=cb4[0:{rows * narrow}]-{rows * narrow} address={out} to_memory=1 rows={rows} planes=1 row_bytes={2 * columns} row_memory={2 * columns} row_local={narrow}
    """)
    await run(b, PE, image.bytes, [program])
    got = b.memory("axi").image[out : out + x.nbytes].view(np.uint16).reshape(x.shape)
    assert (got == sfu_rows.softmax(x, "bfloat16")).all()


@cocotb.test()
async def test_quantise_and_multiply(dut):
    """bfloat16 operands made MXFP8 by the special function unit, then multiplied: scales stand where the matrix unit looks for them."""
    b = await start(dut)
    image = Image(b.rng, MEMORY)
    k, held, rows = 128, 4, 12
    a, w = (convert.narrow(b.rng.normal(0, 1, (n, k)).astype(np.float32).view(np.uint32), "bfloat16") for n in (held, rows))
    at_a, at_w, out = image.put(a), image.put(w), image.room(4 * held * rows)
    program = assemble(f"""
        buffer cb=0 base=0 size=8192
        buffer cb=1 base=8192 size=1024
        buffer cb=2 base=12288 size=4096
        buffer cb=3 base=16384 size=4096
        dma d=cb0[0:{held * 256}]+{held * 256} address={at_a} rows=1 planes=1 row_bytes={held * 256}
        dma d=cb0[0:{rows * 256}]+{rows * 256} address={at_w} rows=1 planes=1 row_bytes={rows * 256}
        sfu.copy a=cb0[0:{held * 256}]-{held * 256} d=cb1[0:1024]+1024 format_a=bfloat16 format_d=float8_e4m3fn mx_d=block_32 sat=1 rows={held} columns={k} stride_a=256 stride_d=128 scale_d=512
        sfu.copy a=cb0[0:{rows * 256}]-{rows * 256} d=cb2[0:4096]+4096 format_a=bfloat16 format_d=float8_e4m3fn mx_d=block_32 sat=1 rows={rows} columns={k} stride_a=256 stride_d=128 scale_d=2048
        dot a=cb1[0:1024]-1024 b=cb2[0:4096]-4096 format_a=float8_e4m3fn format_b=float8_e4m3fn mx_a=block_32 mx_b=block_32 held={held} rows={rows} chunks=2 tail=64 stride_a=128 stride_b=128 scale_a=512 scale_b=2048
        reduce d=cb3[0:{16 * rows}]+{16 * rows} held={held} rows={rows} chunks=2 stride_d=16
        dma a=cb3[0:{16 * rows}]-{16 * rows} address={out} to_memory=1 rows=1 planes=1 row_bytes={16 * rows}
    """)
    await run(b, PE, image.bytes, [program])
    operands = [encode(convert.widen(x, "bfloat16"), "float8_e4m3fn", 32) for x in (a, w)]
    want = dot_product(operands[0][0], operands[1][0], "float8_e4m3fn", scale_a=operands[0][1], scale_b=operands[1][1], block=32)
    got = b.memory("axi").image[out : out + 16 * rows].view(np.uint32).reshape(rows, held)
    assert (got == want.T).all()


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
    await run(b, PE, image.bytes, [one.program(PE), two], bound=one.slots(PE))
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
        "format": [instruction("sfu.exp", format_d=15, rows=1, columns=1, tag=9)],
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
        await run(b, PE, image.bytes, [good.program(PE)], bound=good.slots(PE))


@cocotb.test()
async def test_halves(dut):
    """A product whose halves disagree, or with one half alone: an error, at once or at the deadline, and programs run again after `clear`."""
    b = await start(dut)
    image = Image(b.rng, MEMORY)
    good = image.gemm(9, 5, 40, F.BFLOAT16)
    sizes = dict(held=4, rows=4, chunks=1)
    buffers = [instruction("buffer", cb=0, base=0, size=512), instruction("buffer", cb=3, base=1024, size=256),
               instruction("dma", d=(0, 0, 512, 512), address=image.put(np.zeros(512, np.uint8)), rows=1, planes=1, row_bytes=512)]
    dot = instruction("dot", a=(0, 0, 256, 0), b=(0, 256, 256, 0), format_a=F.BFLOAT16, format_b=F.BFLOAT16, tail=64, stride_a=64, stride_b=64, tag=1, **sizes)
    reduce = instruction("reduce", d=(3, 0, 256, 256), stride_d=16, tag=2, **sizes)
    odd = instruction("reduce", d=(3, 0, 256, 256), stride_d=16, tag=2, **sizes | dict(rows=5))
    broken = instruction("dot", a=(0, 0, 1024, 0), format_a=F.BFLOAT16, format_b=F.BFLOAT16, tail=64, stride_a=64, stride_b=64, tag=1, **sizes)
    unit, alone = int(CpStatus.UNIT), int(UnitStatus.ALONE)
    cases = {
        "sizes": ([dot, odd], {1: (0, 0), 2: (unit, int(UnitStatus.RANGE))}), "dot alone": ([dot], {1: (unit, alone)}), "reduce alone": ([reduce], {2: (unit, alone)}),
        "the other refused": ([reduce, broken], {2: (unit, alone), 1: (int(CpStatus.TOO_LARGE), 0)}),
    }
    for name, (halves, want) in cases.items():
        await b.reset()
        cycles, done = await run(b, PE, image.bytes, [[*buffers, *halves]], exact=False)
        ends = {c["tag"]: (c["status"], c["info"]) for c in done if c["tag"]}
        assert ends == want, f"{name}: {ends}, expected {want}"
        assert (cycles > PE.deadline) == (name in ("dot alone", "reduce alone")), f"{name}: {cycles} cycles"
        b.cover(name)
        b.pin("clear").value = 1
        await b.wait_cycles(2)
        b.pin("clear").value = 0
        await run(b, PE, image.bytes, [good.program(PE)], bound=good.slots(PE))


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
        dut._log.info("%s mx %d 128 x 64 x %d: %d cycles, engine %d, %.4f", f.name, mx, 8 * f.lanes, cycles, g.slots(PE), g.slots(PE) / cycles)
        assert g.slots(PE) >= 0.8 * cycles, f"{f.name}: {g.slots(PE)} of {cycles}"
