"""Cases of the processing element's engines for bench/blocks.py: what their benches give them at full rate, in the same words."""
from __future__ import annotations

import numpy as np

from bench.case import Case
from spec.dma import DMA_DESCRIPTOR
from spec.params import config
from spec.pe import DOT_HELD, DOT_ROW, RE_DRAIN, RE_FILL, DotFormat, Drain
from spec.sfu import NATIVE, UNARY
from tb.numeric import vectors
from tb.pe.dot_jobs import SCALED, random_tile, rows_of
from tb.pe.reduction_jobs import Program, floats, joined
from tb.pe.reduction_jobs import words as records
from tb.pe.sfu_beats import elementwise, join


def dot(name: str, each: int) -> Case:
    """Tiles of every format, with MX scales of blocks of 32 where it has them, `each` rows streamed against each."""
    rng, rows = np.random.default_rng(1), config("tiny" if name == "dot_product" else "mtia300").node.pe.rows
    held, streamed = [], []
    for f in DotFormat:
        mx = 2 if f in SCALED else 0
        t = random_tile(rng, f, f, rows, each, mx, mx)
        held.append(rows_of(DOT_HELD, t.held.image(), format=int(f), mx=mx, row=np.arange(rows), last=np.arange(rows) == rows - 1))
        streamed.append(rows_of(DOT_ROW, t.streamed.image(), format=int(f), mx=mx, first=np.arange(each) == 0, tag=np.arange(each)))
    words = {"held": np.concatenate(held), "row": np.concatenate(streamed)}
    return Case(name=name, sources=words, sinks={"result": len(words["row"])}, runs=4, deadline=100_000)


def reduction(size: str = "") -> Case:
    """Sums of four chunks into one bank while the other is drained with merge: a row a cycle."""
    rng, pe, n = np.random.default_rng(1), config(size or "tiny").node.pe, 32
    p = Program(pe)
    for k in range(60):
        for c in range(4):
            p.fill(rng, k % pe.banks, 0, floats(rng, n, pe.rows), first=c == 0, opens=c == 0, close=c == 3)
        p.drain(k % pe.banks, 0, n, Drain.MEMORY, free=True, partials=floats(rng, n, pe.rows))
    width = 4 * pe.rows
    words = {"fill": records(RE_FILL, p.fills), "drain": records(RE_DRAIN, p.drains), "sums": joined(p.sums, width + 3),
             "bias": joined(p.bias, width), "partial": joined(p.partial, width)}
    return Case(name="reduction", sources=words, sinks={"memory": 60 * n, "sfu": 0, "neighbour": 0}, runs=8, deadline=100_000, config=size)


def sfu() -> Case:
    """Every function of binary32 operands, a beat a cycle."""
    rng, lanes = np.random.default_rng(1), config("tiny").node.pe.lanes
    beats = join([elementwise(lanes, op, vectors.floats(rng, 4000), fo=fo) for op in UNARY for fo in NATIVE])
    return Case(name="sfu", sources={"beats": beats.packed()[:16384]}, sinks={"results": min(len(beats), 16384)}, runs=4, deadline=100_000)


def dma() -> Case:
    """Copies between the memories, each way, of 4 KiB from and to odd addresses."""
    jobs = [
        DMA_DESCRIPTOR.pack(tag=i, src_local=i % 2, dst_local=1 - i % 2, row_bytes=4096, rows=1, planes=1, repeats=1,
                            src=(i * 4099) % 30000 + 3, dst=32768 + (i * 4111) % 24000)
        for i in range(256)
    ]
    nbytes = DMA_DESCRIPTOR.nbytes
    words = np.frombuffer(b"".join(j.to_bytes(nbytes, "little") for j in jobs), np.uint8).reshape(-1, nbytes)
    image = np.random.default_rng(1).integers(0, 256, 1 << 16, dtype=np.uint8)
    return Case(name="dma", sources={"descriptor": words}, sinks={"completion": len(words)}, runs=2, deadline=200_000, image=image, memories=("axi", "near"))


def cases(full: bool) -> list[Case]:
    """`full`: engines of 32 rows too, which take minutes to build."""
    return [dot("dot_product", 300), reduction(), sfu(), dma(), *([dot("dot_product_full", 300), reduction("mtia300")] if full else [])]
