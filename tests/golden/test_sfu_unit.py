"""The special function unit's instructions: places of elements and scales by loops over elements, kernels against their definitions, refusals."""
from __future__ import annotations

import numpy as np
import pytest

from golden.numeric import convert_any, mx
from golden.pe import sfu, sfu_round, sfu_rows, sfu_unit
from spec.convert import ConvertFormat as F
from spec.isa import SFU_ARGS, UnitStatus
from spec.mx import ELEMENTS, ScaleRule
from spec.pe import Mx
from spec.sfu import ROW, SfuB, SfuOp

RNG = np.random.default_rng(5)
SIZE = 1 << 16
A, B, D, SA, SD = 0x1000, 0x5000, 0x9000, 0xD000, 0xE000
BASE = {f.name: 0 for f in SFU_ARGS.fields if not f.name.startswith("_")} | dict(rows=3, columns=70, stride_a=512, stride_b=576, stride_d=640)


def get(local: np.ndarray, at: int, column: int, fmt: F) -> int:
    """Code of an element, bit by bit from memory as one number."""
    bit = 8 * at + column * fmt.slot_bits
    word = int.from_bytes(local[bit // 8 : bit // 8 + 4].tobytes(), "little") >> bit % 8
    return word & fmt.format.mask


def number(code: int, fmt: F) -> int:
    return int(sfu_round.widen(np.array([code], f"u{fmt.format.container_bits // 8}"), fmt.name.lower())[0])


def fields(**changes: int) -> dict[str, int]:
    return BASE | {k: int(v) for k, v in changes.items()}


@pytest.mark.parametrize("fd", [f for f in F if f is not F.FLOAT8_E8M0FNU], ids=lambda f: f.name)
@pytest.mark.parametrize("source_b", SfuB)
def test_places_of_elements(fd: F, source_b: SfuB) -> None:
    for fa, fb, op in ((F.FLOAT32, F.BFLOAT16, SfuOp.ADD), (F.FLOAT4_E2M1FN, F.FLOAT6_E3M2FN, SfuOp.MUL), (F.INT8, F.FLOAT4_E2M1FN, SfuOp.MAX),
                       (F.FLOAT16, F.INT32, SfuOp.CLAMP), (fd, F.FLOAT8_E5M2, SfuOp.ROW_MAX)):
        local = RNG.integers(0, 256, SIZE, dtype=np.uint8)
        low, high = 0x3F800000, 0x42000000
        strides = dict(stride_b=20) if source_b == SfuB.COLUMN else {}
        f = fields(format_a=fa, format_b=fb, format_d=fd, source_b=source_b, low=low, high=high, **strides)
        before = local.copy()
        assert sfu_unit.run(local, op, f, A, B, D) == UnitStatus.OK
        name, want = fd.name.lower(), before.copy()
        for r in range(f["rows"]):
            x = [number(get(before, A + r * f["stride_a"], c, fa), fa) for c in range(f["columns"])]
            places = [(B + (source_b != SfuB.ROW) * r * f["stride_b"], 0 if source_b == SfuB.COLUMN else c) for c in range(f["columns"])]
            y = [low if source_b == SfuB.SCALAR else number(get(before, *p, fb), fb) for p in places]
            xs, ys = np.array(x, np.uint32), np.array(y, np.uint32)
            if op in ROW:
                codes = [int(sfu_rows.row(op, xs, "float32", name))]
            elif op == SfuOp.CLAMP:
                codes = sfu.clamp(xs, ys, np.uint32(high), "float32", "float32", name).tolist()
            else:
                codes = sfu.binary(op, xs, ys, "float32", "float32", name).tolist()
            total = sum(v << i * fd.slot_bits for i, v in enumerate(codes))
            nbytes = -(-len(codes) * fd.slot_bits // 8)
            want[D + r * f["stride_d"] :][:nbytes] = np.frombuffer(total.to_bytes(nbytes, "little"), np.uint8)
        assert np.array_equal(local, want)


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("block", [Mx.BLOCK_16, Mx.BLOCK_32])
def test_mx_of_both_sides(name: str, block: Mx) -> None:
    fmt = F[name.upper()]
    per_chunk = 512 // fmt.slot_bits
    rows, columns = 5, 2 * per_chunk + 17
    for rule in ScaleRule:
        local = RNG.integers(0, 256, SIZE, dtype=np.uint8)
        x = (RNG.normal(0, 1, (rows, columns)) * 2.0 ** RNG.integers(-20, 20, (rows, 1))).astype(np.float32)
        for r in range(rows):
            local[A + 4096 * r : A + 4096 * r + 4 * columns] = x[r].view(np.uint8)
        before = local.copy()
        pack = fields(format_d=fmt, mx_d=block, rule=rule, sat=1, rows=rows, columns=columns, stride_a=4096, stride_d=512, scale_d=SD - D)
        assert sfu_unit.run(local, SfuOp.COPY, pack, A, 0, D) == UnitStatus.OK
        codes, scales = mx.encode(x.view(np.uint32), name, block.block, rule.name.lower())
        places = set()
        for r in range(rows):
            assert [get(local, D + 512 * r, c, fmt) for c in range(columns)] == codes[r].tolist()
            for i, s in enumerate(scales[r]):
                chunk, byte = divmod(i, per_chunk // block.block)
                places.add(SD + 8 * (chunk * rows + r) + byte)
                assert local[SD + 8 * (chunk * rows + r) + byte] == s
        kept = [p for p in range(SD, SD + 8 * 3 * rows) if p not in places]
        assert (local[kept] == before[kept]).all()
        back = fields(format_a=fmt, mx_a=block, rows=rows, columns=columns, stride_a=512, stride_d=4096, scale_a=SD - D)
        assert sfu_unit.run(local, SfuOp.COPY, back, D, 0, 0x0) == UnitStatus.OK
        got = np.stack([local[4096 * r : 4096 * r + 4 * columns] for r in range(rows)]).view(np.uint32)
        assert np.array_equal(got, mx.decode(codes, scales, name, block.block))


def test_stochastic_index_is_the_place_in_the_result() -> None:
    local = np.zeros(SIZE, np.uint8)
    x = RNG.normal(0, 1, (3, 70)).astype(np.float32)
    for r in range(3):
        local[A + 512 * r : A + 512 * r + 280] = x[r].view(np.uint8)
    for op, data in ((SfuOp.COPY, x), (SfuOp.ROW_MAX, x.max(axis=1, keepdims=True))):
        sfu_unit.run(local, op, fields(format_d=F.BFLOAT16, stochastic=1, seed=99), A, 0, D)
        got = np.stack([local[D + 640 * r : D + 640 * r + 2 * data.shape[1]] for r in range(3)]).view(np.uint16)
        assert np.array_equal(got, convert_any.convert(data.view(np.uint32), "float32", "bfloat16", seed=99))


def test_softmax_and_bag_in_place() -> None:
    """Softmax of rows as six instructions, and the sum of groups of rows as additions of `d` to itself."""
    local = RNG.integers(0, 256, SIZE, dtype=np.uint8)
    rows, columns = 7, 90
    x = convert_any.convert(RNG.normal(0, 3, (rows, columns)).astype(np.float32).view(np.uint32), "float32", "bfloat16")
    for r in range(rows):
        local[A + 256 * r : A + 256 * r + 2 * columns] = x[r].view(np.uint8)
    shape = dict(rows=rows, columns=columns)
    top, total, wide = 0x200, 0x400, 0x4000
    steps = [
        (SfuOp.ROW_MAX, dict(format_a=F.BFLOAT16, stride_a=256, stride_d=4), A, 0, top),
        (SfuOp.SUB, dict(format_a=F.BFLOAT16, source_b=SfuB.COLUMN, stride_a=256, stride_b=4, stride_d=512), A, top, wide),
        (SfuOp.EXP, dict(stride_a=512, stride_d=512), wide, 0, wide),
        (SfuOp.ROW_SUM, dict(stride_a=512, stride_d=4), wide, 0, total),
        (SfuOp.RECIPROCAL, dict(rows=1, columns=rows, stride_a=64, stride_d=64), total, 0, total),
        (SfuOp.MUL, dict(format_d=F.BFLOAT16, source_b=SfuB.COLUMN, stride_a=512, stride_b=4, stride_d=256), wide, total, D),
    ]
    for op, change, a, b, d in steps:
        assert sfu_unit.run(local, op, fields(**shape | change), a, b, d) == UnitStatus.OK
    got = np.stack([local[D + 256 * r : D + 256 * r + 2 * columns] for r in range(rows)]).view(np.uint16)
    assert np.array_equal(got, sfu_rows.softmax(x, "bfloat16"))

    sums = None
    for k in range(3):  # bags of three rows, two bags
        op = SfuOp.ADD if k else SfuOp.COPY
        bags = fields(format_a=F.BFLOAT16, rows=2, columns=columns, stride_a=768, stride_b=512, stride_d=512)
        assert sfu_unit.run(local, op, bags, A + 256 * k, D, D) == UnitStatus.OK
        part = sfu_round.widen(x[k::3][:2], "bfloat16")
        sums = part if sums is None else sfu.binary(SfuOp.ADD, sums, part, "float32")
    assert np.array_equal(np.stack([local[D + 512 * r : D + 512 * r + 4 * columns] for r in range(2)]).view(np.uint32), sums)


@pytest.mark.parametrize(("status", "op", "change", "at"), [
    (UnitStatus.FORMAT, 31, {}, (A, B, D)), (UnitStatus.FORMAT, SfuOp.EXP, dict(format_a=14), (A, B, D)),
    (UnitStatus.FORMAT, SfuOp.EXP, dict(format_d=9), (A, B, D)),
    (UnitStatus.FORMAT, SfuOp.ADD, dict(format_b=15), (A, B, D)), (UnitStatus.OK, SfuOp.ADD, dict(format_b=15, source_b=SfuB.SCALAR), (A, 1, D)),
    (UnitStatus.FORMAT, SfuOp.COPY, dict(mx_a=1), (A, B, D)), (UnitStatus.FORMAT, SfuOp.COPY, dict(mx_d=3, format_d=4), (A, B, D)),
    (UnitStatus.FORMAT, SfuOp.ROW_MAX, dict(mx_d=1, format_d=4), (A, B, D)), (UnitStatus.FORMAT, SfuOp.COPY, dict(mx_d=1, format_d=4, rule=3), (A, B, D)),
    (UnitStatus.FORMAT, SfuOp.COPY, dict(mx_d=1, format_d=4, stochastic=1), (A, B, D)), (UnitStatus.RANGE, SfuOp.COPY, dict(rows=0), (A, B, D)),
    (UnitStatus.RANGE, SfuOp.COPY, dict(columns=0), (A, B, D)), (UnitStatus.RANGE, SfuOp.COPY, dict(stride_a=32), (A, B, D)),
    (UnitStatus.RANGE, SfuOp.ADD, dict(stride_b=4), (A, B, D)), (UnitStatus.OK, SfuOp.ADD, dict(stride_b=4, source_b=SfuB.ROW), (A, B, D)),
    (UnitStatus.OK, SfuOp.EXP, dict(stride_b=4), (A, 1, D)), (UnitStatus.RANGE, SfuOp.ADD, dict(stride_b=2, source_b=SfuB.COLUMN), (A, B, D)),
    (UnitStatus.RANGE, SfuOp.COPY, dict(mx_a=1, format_a=4, scale_a=8), (A, B, D)), (UnitStatus.OK, SfuOp.COPY, dict(format_a=4, scale_a=8), (A, B, D)),
    (UnitStatus.ALIGN, SfuOp.COPY, {}, (A + 4, B, D)), (UnitStatus.ALIGN, SfuOp.COPY, {}, (A, B, D + 32)), (UnitStatus.ALIGN, SfuOp.ADD, {}, (A, B + 8, D)),
    (UnitStatus.OK, SfuOp.ROW_SUM, dict(stride_d=4), (A, B, D + 12)), (UnitStatus.ALIGN, SfuOp.ROW_SUM, dict(stride_d=4), (A, B, D + 2)),
])
def test_status(status: UnitStatus, op: int, change: dict[str, int], at: tuple[int, int, int]) -> None:
    local = np.zeros(SIZE, np.uint8)
    assert sfu_unit.run(local, op, fields(**change), *at) == status
    assert status == UnitStatus.OK or not local.any()
