"""Unit of the special function unit: an SFU instruction on local memory, with conversion from and to every format; bit-exact, no time.

Rules (docs/blocks/sfu.md; spec.isa: SFU_ARGS)
    * Element c of row r of `a` stands at bit c * slot of ``a + r * stride_a``; `b` likewise (ELEMENTS), or row 0 for every row (ROW), or one element at
      ``b + r * stride_b`` for the whole row (COLUMN), or `low` (SCALAR). Results stand in `d` as elements of `a` do; those of row operations, one a
      row, at ``d + r * stride_d``. A 4-bit element without a neighbour in its byte has 0 above it.
    * Operands widen exactly to binary32, int32 to nearest even; MX elements are multiplied by their scale (`golden.numeric.mx`). The operation's
      internal result (`golden.pe.sfu`) is rounded once to the format of `d`. MX results are the MX encoding of the binary32 results
      (to nearest even, beyond range infinite).
    * The place of a result in row-major order is its index for stochastic rounding.
    * Scale i of chunk c (64 bytes) of row r is byte i of ``scales + 8 * (c * rows + r)``; of results, bytes of blocks that a row does not have stay.
    * All operands are read before anything is written.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import mx
from golden.pe import sfu, sfu_rows
from golden.pe.matrix_unit import unpack
from golden.pe.sfu_round import Rounding, widen
from spec.convert import ConvertFormat
from spec.isa import UnitStatus
from spec.mx import ELEMENTS, ScaleRule
from spec.pe import CHUNK_BYTES, Mx
from spec.sfu import ROW, TAKES_B, UNARY, SfuB, SfuOp

Args = Mapping[str, int]
Bytes = NDArray[np.uint8]
F32 = "float32"


def _name(code: int) -> str:
    return ConvertFormat(code).name.lower()


def reads_b(op: int, args: Args) -> bool:
    return op in TAKES_B and args["source_b"] != SfuB.SCALAR


def _formats_fit(op: int, args: Args) -> bool:
    known = list(ConvertFormat)
    if op not in list(SfuOp) or args["format_a"] not in known or args["format_d"] not in known or args["format_d"] == ConvertFormat.FLOAT8_E8M0FNU:
        return False
    if reads_b(op, args) and args["format_b"] not in known:
        return False
    for which in "ad":
        block = args[f"mx_{which}"]
        if block != Mx.NONE and (block not in list(Mx) or _name(args[f"format_{which}"]) not in ELEMENTS):
            return False
    return args["mx_d"] == Mx.NONE or bool(op not in ROW and not args["stochastic"] and args["rule"] in list(ScaleRule))


def _step(args: Args, which: str, single: bool) -> int:
    """What address and stride of an operand must be multiples of."""
    return max(8, ConvertFormat(args[f"format_{which}"]).slot_bits) // 8 if single else CHUNK_BYTES


def status(op: int, args: Args, a: int, b: int, d: int) -> UnitStatus:
    """Known before anything is read: FORMAT, RANGE, ALIGN in this order. Fields that the instruction does not use do not count."""
    if not _formats_fit(op, args):
        return UnitStatus.FORMAT
    places = [(args["stride_a"], a, CHUNK_BYTES), (args["stride_d"], d, _step(args, "d", op in ROW))]
    if reads_b(op, args):
        step = _step(args, "b", args["source_b"] == SfuB.COLUMN)
        places.append((0 if args["source_b"] == SfuB.ROW else args["stride_b"], b, step))
    scales = [args[f"scale_{which}"] for which in "ad" if args[f"mx_{which}"] != Mx.NONE]
    if not args["rows"] or not args["columns"] or any(stride % step for stride, _, step in places) or any(s % CHUNK_BYTES for s in scales):
        return UnitStatus.RANGE
    return UnitStatus.ALIGN if any(at % step for _, at, step in places) else UnitStatus.OK


def _at(local: Bytes, base: int, stride: int, rows: int, nbytes: int) -> NDArray[np.int64]:
    """Places of `nbytes` bytes of each row; local memory's addresses wrap."""
    return (base + stride * np.arange(rows)[:, None] + np.arange(nbytes)) % len(local)


def _row_bytes(columns: int, code: int) -> int:
    return -(-columns * ConvertFormat(code).slot_bits // 8)


def _scale_places(local: Bytes, base: int, args: Args, which: str) -> NDArray[np.int64]:
    """Place of the scale of every block, (rows, blocks)."""
    fmt, block = ConvertFormat(args[f"format_{which}"]), Mx(args[f"mx_{which}"]).block
    i = np.arange(-(-args["columns"] // block))
    chunk_blocks = 8 * CHUNK_BYTES // fmt.slot_bits // block
    return (base + args[f"scale_{which}"] + 8 * (i // chunk_blocks * args["rows"] + np.arange(args["rows"])[:, None]) + i % chunk_blocks) % len(local)


def _elements(local: Bytes, base: int, stride: int, rows: int, columns: int, code: int) -> NDArray[Any]:
    return unpack(local[_at(local, base, stride, rows, _row_bytes(columns, code))], ConvertFormat(code))[:, :columns]


def _operand_a(local: Bytes, args: Args, a: int) -> NDArray[Any]:
    codes, name = _elements(local, a, args["stride_a"], args["rows"], args["columns"], args["format_a"]), _name(args["format_a"])
    if args["mx_a"] == Mx.NONE:
        return widen(codes, name)
    return mx.decode(codes, local[_scale_places(local, a, args, "a")], name, Mx(args["mx_a"]).block)


def _operand_b(local: Bytes, args: Args, b: int) -> NDArray[Any]:
    if args["source_b"] == SfuB.SCALAR:
        return np.array(args["low"], np.uint32)
    rows = 1 if args["source_b"] == SfuB.ROW else args["rows"]
    columns = 1 if args["source_b"] == SfuB.COLUMN else args["columns"]
    return widen(_elements(local, b, args["stride_b"], rows, columns, args["format_b"]), _name(args["format_b"]))


def _results(op: SfuOp, local: Bytes, args: Args, a: int, b: int) -> NDArray[Any]:
    x = _operand_a(local, args, a)
    out, how = F32, Rounding()
    if args["mx_d"] == Mx.NONE:
        out, how = _name(args["format_d"]), Rounding("sat" if args["sat"] else "ovf", args["seed"] if args["stochastic"] else None)
    if op in ROW:
        return sfu_rows.row(op, x, F32, out, how)[:, None]
    if op in UNARY:
        return sfu.unary(op, x, F32, out, how)
    y = _operand_b(local, args, b)
    if op == SfuOp.CLAMP:
        return sfu.clamp(x, y, np.array(args["high"], np.uint32), F32, F32, out, how)
    return sfu.binary(op, x, y, F32, F32, out, how)


def _packed(codes: NDArray[Any], code: int) -> Bytes:
    """(rows, bytes) of codes."""
    bits = ConvertFormat(code).slot_bits
    if bits == 4:
        even = np.concatenate([codes, np.zeros((len(codes), codes.shape[1] % 2), codes.dtype)], axis=1).astype(np.uint8)
        return even[:, ::2] | even[:, 1::2] << np.uint8(4)
    return np.ascontiguousarray(codes.astype(f"<u{bits // 8}")).view(np.uint8).reshape(len(codes), -1)


def run(local: Bytes, op: int, args: Args, a: int, b: int, d: int) -> UnitStatus:
    """Carry out one instruction in `local`."""
    answer = status(op, args, a, b, d)
    if answer != UnitStatus.OK:
        return answer
    codes = _results(SfuOp(op), local, args, a, b)
    if args["mx_d"] != Mx.NONE:
        mode = "sat" if args["sat"] else "ovf"
        codes, scales = mx.encode(codes, _name(args["format_d"]), Mx(args["mx_d"]).block, ScaleRule(args["rule"]).name.lower(), mode)
        local[_scale_places(local, d, args, "d")] = scales
    data = _packed(codes, args["format_d"])
    local[_at(local, d, args["stride_d"], args["rows"], data.shape[1])] = data
    return UnitStatus.OK
