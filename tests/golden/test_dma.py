"""The golden DMA engine against the same moves written byte by byte, and against what each rule says of its own cases."""
from __future__ import annotations

import numpy as np
import pytest

from golden.pe.dma import DmaEngine, Space
from spec.dma import DMA_COMPLETION, DMA_DESCRIPTOR, DmaOp, DmaStatus
from spec.formats import format_of

SIZE, LIMIT = 1 << 14, 1 << 16


def engine(seed: int = 1) -> DmaEngine:
    rng = np.random.default_rng(seed)
    return DmaEngine(Space(rng.integers(0, 256, SIZE, dtype=np.uint8), limit=LIMIT), Space(rng.integers(0, 256, SIZE, dtype=np.uint8), silent=True))


def descriptor(**fields: int) -> dict[str, int]:
    return {"rows": 1, "planes": 1, "repeats": 1, **{k: v & 0xFFFF_FFFF if k.startswith(("row_", "plane_", "repeat_")) and k != "row_bytes" else v
                                                    for k, v in fields.items()}}


def by_bytes(e: DmaEngine, d: dict[str, int]) -> None:
    """A COPY or FILL without errors, a byte at a time through a row of Python integers."""
    def s(k: str) -> int:
        return (d.get(k, 0) ^ 0x8000_0000) - 0x8000_0000

    spaces = (e.memory.data, e.local.data)
    source, target = spaces[d.get("src_local", 0)], spaces[d.get("dst_local", 0)]
    for c in range(d["repeats"]):
        for b in range(d["planes"]):
            for a in range(d["rows"]):
                src, dst = (d.get(x, 0) + a * s(f"row_{x}") + b * s(f"plane_{x}") + c * s(f"repeat_{x}") for x in ("src", "dst"))
                if d.get("op", 0) == DmaOp.FILL:
                    row = [d["fill"] >> 8 * (k % 4) & 0xFF for k in range(d["row_bytes"])]
                else:
                    row = [int(source[src + k]) for k in range(d["row_bytes"])]
                for k, x in enumerate(row):
                    target[dst + k] = x


def test_moves_as_byte_by_byte() -> None:
    rng = np.random.default_rng(3)
    a, b = engine(), engine()
    for _ in range(300):
        n, counts = int(rng.integers(1, 150)), [int(x) for x in rng.integers(1, 4, 3)]
        d = descriptor(
            op=int(rng.integers(2)), src_local=int(rng.integers(2)), dst_local=int(rng.integers(2)), row_bytes=n, fill=int(rng.integers(1 << 32)),
            src=int(rng.integers(3000, 6000)), dst=int(rng.integers(8500, 10000)), rows=counts[0], planes=counts[1], repeats=counts[2],
            **{f"{k}_{x}": int(rng.integers(-200, 200)) for k in ("row", "plane", "repeat") for x in ("src", "dst")})
        assert a.run([d]) == [(0, DmaStatus.OK, 0)]
        by_bytes(b, d)
        assert (a.memory.data == b.memory.data).all() and (a.local.data == b.local.data).all(), d


def test_nan_patterns_and_all_other_bits_stay() -> None:
    e = engine()
    codes = np.arange(1 << 12, dtype=np.uint16) | 0x7F80
    e.memory.data[:8192] = codes.view(np.uint8)
    e.run([descriptor(src=0, dst=1, dst_local=1, row_bytes=8192)])
    assert (e.local.data[1:8193].view(np.uint8) == codes.view(np.uint8)).all()


@pytest.mark.parametrize(("fields", "status", "addr"), [
    ({"row_bytes": 0}, DmaStatus.EMPTY_ROW, 0),
    ({"row_bytes": 0, "rows": 0}, DmaStatus.EMPTY_ROW, 0),
    ({"rows": 0}, DmaStatus.EMPTY_COUNT, 0), ({"planes": 0}, DmaStatus.EMPTY_COUNT, 0), ({"repeats": 0}, DmaStatus.EMPTY_COUNT, 0),
    ({"op": 2, "planes": 2, "row_bytes": 0}, DmaStatus.KIND, 0), ({"op": 3, "repeats": 2}, DmaStatus.KIND, 0),
    ({"op": 2, "planes": 0}, DmaStatus.EMPTY_COUNT, 0),
    ({"op": 2, "index": 6}, DmaStatus.ALIGN, 6), ({"op": 3, "index": SIZE - 4, "rows": 2}, DmaStatus.RANGE_INDEX, SIZE - 4),
    ({"src": LIMIT - 3}, DmaStatus.RANGE_SOURCE, LIMIT - 3), ({"dst": LIMIT - 3}, DmaStatus.RANGE_DESTINATION, LIMIT - 3),
    ({"src": LIMIT - 3, "dst": LIMIT - 3}, DmaStatus.RANGE_SOURCE, LIMIT - 3),
    ({"src": LIMIT - 4}, DmaStatus.READ_ERROR, LIMIT - 64), ({"dst": LIMIT - 4}, DmaStatus.WRITE_ERROR, LIMIT - 64),
    ({"src": 8, "dst": 9}, DmaStatus.OVERLAP, 9), ({"src": 8, "dst": 11}, DmaStatus.OVERLAP, 11), ({"src": 8, "dst": 12}, DmaStatus.OK, 0),
    ({"src": 8, "dst": 8}, DmaStatus.OK, 0), ({"src": 8, "dst": 7}, DmaStatus.OK, 0), ({"src": 8, "dst": 9, "dst_local": 1}, DmaStatus.OK, 0),
    ({"op": 1, "src": LIMIT, "dst": 9}, DmaStatus.OK, 0),
    ({"src": 64, "rows": 3, "row_src": -64}, DmaStatus.RANGE_SOURCE, (1 << 64) - 64),
])
def test_status(fields: dict[str, int], status: DmaStatus, addr: int) -> None:
    d = descriptor(**{"src": 0x100, "dst": 0x200, "row_bytes": 4, "tag": 77, **fields})
    e = engine()
    before = e.memory.data.copy()
    assert e.run([d]) == [(77, status, addr)]
    if status not in (DmaStatus.OK, DmaStatus.RANGE_SOURCE):
        assert (e.memory.data == before).all()


def test_rows_before_a_bad_one_are_moved() -> None:
    e = engine()
    first = e.memory.data[:300].copy()
    assert e.run([descriptor(src=0, dst=SIZE - 256, dst_local=1, row_bytes=100, rows=9, row_src=100, row_dst=100)]) == [
        (0, DmaStatus.RANGE_DESTINATION, SIZE - 56)]
    assert (e.local.data[SIZE - 256 : SIZE - 56] == first[:200]).all()


def test_read_error_moves_what_lies_before() -> None:
    e = engine()
    e.memory.bad = [(0x180, 0x1C0)]
    source, before = e.memory.data.copy(), e.local.data.copy()
    assert e.run([descriptor(src=0x143, dst=0x801, dst_local=1, row_bytes=300, rows=2, row_src=1000, row_dst=400)])[0][1:] == (DmaStatus.READ_ERROR, 0x180)
    before[0x801 : 0x801 + 0x3D] = source[0x143:0x180]
    assert (e.local.data == before).all()


def test_write_error_stops_nothing() -> None:
    e = engine()
    e.memory.bad = [(0x1080, 0x10C0)]
    source, before = e.local.data.copy(), e.memory.data.copy()
    assert e.run([descriptor(src=0, src_local=1, dst=0xFF1, row_bytes=500)])[0][1:] == (DmaStatus.WRITE_ERROR, 0x1000)
    before[0xFF1 : 0xFF1 + 500] = source[:500]
    before[0x1080:0x10C0] = e.memory.data[0x1080:0x10C0]
    assert (e.memory.data == before).all()
    assert (e.memory.data[0x1080:0x10C0] != source[0x8F : 0x8F + 64]).any()


@pytest.mark.parametrize("ahead", [1, 16, 17, 25, 32, 40, 47])
def test_list_is_read_a_word_ahead(ahead: int) -> None:
    """Row r overwrites index r + ahead. The third word of the list is read after the rows of its first word and before those of its second."""
    e = engine()
    e.local.data[:512] = 0
    e.memory.data[:4] = np.array([5], np.uint32).view(np.uint8)
    e.run([descriptor(op=DmaOp.GATHER, src=0, dst=4 * ahead, dst_local=1, row_bytes=4, rows=48, row_src=4, row_dst=4, index=0)])
    got = e.local.data[4 * ahead : 4 * ahead + 192].view(np.uint32)
    words = e.memory.data.view(np.uint32)
    assert [int(x) for x in got] == [int(words[5]) if r >= 32 and 0 <= r - ahead < 16 else 5 for r in range(48)]


def test_records_hold_their_codes() -> None:
    assert DMA_DESCRIPTOR.nbytes == 64 and DMA_COMPLETION.nbytes == 12
    assert max(DmaOp) < 4 and max(DmaStatus) < 256
    with pytest.raises(ValueError, match="multiple of 64"):
        Space(np.zeros(100, np.uint8))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_nan_codes_keep_their_bits(name: str) -> None:
    """All NaN codes, signalling ones too, through local memory and back: data that moves is not touched."""
    f = format_of(name)
    codes = np.array([c for c in range(1 << 16) if f.is_nan(c)], np.uint16)
    n = codes.nbytes
    memory = np.zeros(-(-2 * n // 64) * 64 + 64, np.uint8)
    memory[1 : 1 + n] = codes.view(np.uint8)  # at an odd address
    engine = DmaEngine(Space(memory), Space(np.zeros(8192, np.uint8), silent=True))
    there = dict(op=0, dst_local=1, row_bytes=n, src=1, dst=3, rows=1, planes=1, repeats=1)
    back = dict(op=0, src_local=1, row_bytes=n, src=3, dst=n + 5, rows=1, planes=1, repeats=1)
    assert [s for _, s, _ in engine.run([there, back])] == [0, 0]
    assert (memory[n + 5 : 2 * n + 5] == codes.view(np.uint8)).all()
