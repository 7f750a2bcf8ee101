"""Units of the dot-product and reduction engines on local memory: what a DOT instruction reads, what a REDUCE instruction writes; bit-exact.

Rules: spec/isa.py (DOT_ARGS, REDUCE_ARGS) and docs/numbers.md. Sums take chunks in order, starting from the bias; results are narrowed once.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert, fp32
from golden.numeric.arguments import fields, typed
from golden.numeric.fp32 import NAN, Bits
from golden.pe.dot_product import dot_product
from spec.convert import ConvertFormat
from spec.fields import Record
from spec.isa import DOT_ARGS, REDUCE_ARGS, OutFormat, UnitStatus
from spec.params import PeParams
from spec.pe import CHUNK_BYTES, DotFormat, Mx

Bytes = NDArray[np.uint8]
Args = Mapping[str, int]


@dataclass
class Pending:
    """Operands of a DOT instruction, as read: codes (rows, K), MX scales as of blocks of 16, or none."""

    held: NDArray[Any]
    rows: NDArray[Any]
    formats: tuple[int, int]
    scales: tuple[NDArray[Any] | None, NDArray[Any] | None]
    chunks: int
    bad: bool


def fits(pe: PeParams, args: Args) -> bool:
    """Whether DOT's sizes are possible at all; if not, neither half of the product takes part in anything."""
    return bool(args["held"] and args["chunks"] and 1 <= args["rows"] <= pe.depth)


def dot_status(pe: PeParams, args: Args, a: int, b: int) -> UnitStatus:
    """Status known before anything is read. A refused DOT whose sizes fit gives sums of NaN, so that its REDUCE has what to take."""
    if not fits(pe, args) or not 1 <= args["tail"] <= CHUNK_BYTES:
        return UnitStatus.RANGE
    if any(args[name] % 64 for name in ("stride_a", "stride_b", "scale_a", "scale_b")):
        return UnitStatus.RANGE
    return UnitStatus.ALIGN if a % 64 or b % 64 else UnitStatus.OK


def unpack(chunk_bytes: Bytes, fmt: DotFormat | ConvertFormat) -> NDArray[Any]:
    """Codes of (rows, bytes)."""
    if fmt.slot_bits == 4:
        return np.stack([chunk_bytes & 15, chunk_bytes >> 4], axis=2).reshape(len(chunk_bytes), -1)
    codes = np.ascontiguousarray(chunk_bytes).view(f"<u{fmt.slot_bits // 8}")
    return (codes & fmt.format.mask).astype(codes.dtype)


def _given(local: Bytes, args: Args, record: Record, **addresses: int) -> None:
    typed(local, "local memory")
    fields(args, (f for f in record.widths if not f.startswith("_")), record.name)
    fields(addresses, addresses, "addresses")


def _inside(local: Bytes, at: NDArray[Any], what: str) -> NDArray[Any]:
    """Addresses `at`, refused where the memory has none of them: the requester keeps operands inside local memory."""
    if at.size and not 0 <= int(at.min()) <= int(at.max()) < len(local):
        raise ValueError(f"{what}: bytes {int(at.min()):#x} to {int(at.max()):#x}; local memory has {len(local):#x} bytes")
    return at


def _operand(local: Bytes, args: Args, which: str, address: int) -> tuple[NDArray[Any], NDArray[Any] | None, bool]:
    """(codes, scales as of blocks of 16, whether format and scales do not fit)."""
    rows = args["held"] if which == "a" else args["rows"]
    code, mx = args[f"format_{which}"], args[f"mx_{which}"]
    nbytes = CHUNK_BYTES * args["chunks"]
    at = address + args[f"stride_{which}"] * np.arange(rows)[:, None] + np.arange(nbytes)
    data = local[_inside(local, at, f"operand {which}")]
    data[:, nbytes - CHUNK_BYTES + args["tail"] :] = 0
    known = code in list(DotFormat)
    fmt = DotFormat(code) if known else DotFormat.INT8
    codes = unpack(data, fmt)
    bad = not known or mx > max(Mx) or (mx != Mx.NONE and not fmt.scaled)
    if mx == Mx.NONE or bad:
        return codes, None, bad
    blocks = fmt.lanes // Mx(mx).block
    at = address + args[f"scale_{which}"] + 8 * np.arange(args["chunks"] * rows)[:, None] + np.arange(blocks)
    scale = local[_inside(local, at, f"scales of operand {which}")].reshape(args["chunks"], rows, blocks).transpose(1, 0, 2).reshape(rows, -1)
    return codes, np.repeat(scale, Mx(mx).block // 16, axis=1), False


def refused(args: Args) -> Pending:
    """Sums of NaN, of a DOT that was refused."""
    nothing = [np.zeros((args[n], args["chunks"]), np.uint8) for n in ("held", "rows")]
    return Pending(nothing[0], nothing[1], (args["format_a"], args["format_b"]), (None, None), args["chunks"], True)


def dot(local: Bytes, args: Args, a: int, b: int) -> Pending:
    """What DOT reads. The instruction must have passed `dot_status`.

    Raises:
        ValueError: operands beyond the memory, fields that are missing or negative. TypeError: fields that are no integers, a memory that is none of bytes.
    """
    _given(local, args, DOT_ARGS, a=a, b=b)
    held, scale_a, bad_a = _operand(local, args, "a", a)
    rows, scale_b, bad_b = _operand(local, args, "b", b)
    formats = args["format_a"], args["format_b"]
    bad = bad_a or bad_b
    if not bad:
        x, y = map(DotFormat, formats)
        bad = x.slot_bits != y.slot_bits or (x is DotFormat.INT8) != (y is DotFormat.INT8)
    return Pending(held, rows, formats, (scale_a, scale_b), args["chunks"], bad)


def sums(p: Pending, bias: Bits | None) -> Bits:
    """(rows, held) patterns: chunks in order, from the bias."""
    if p.bad:
        return np.full((len(p.rows), len(p.held)), NAN, np.uint32)
    names = [DotFormat(f).name.lower() for f in p.formats]
    kw: dict[str, Any] = {}
    if any(s is not None for s in p.scales):
        ones = [np.full((len(x), x.shape[1] // 16), 127, np.uint8) for x in (p.held, p.rows)]
        kw = {"scale_a": ones[0] if p.scales[0] is None else p.scales[0], "scale_b": ones[1] if p.scales[1] is None else p.scales[1], "block": 16}
    start = None if bias is None else bias[:, None]
    return dot_product(p.held, p.rows, *names, bias=start, **kw).T


def reduce_status(pe: PeParams, args: Args, a: int, d: int, dot: Pending | None) -> UnitStatus:
    """Status known before anything is done; `dot`: what its DOT gives, None if that was of impossible sizes. A refused REDUCE takes its sums all the same, and writes nothing."""
    if dot is None or (len(dot.held), len(dot.rows), dot.chunks) != (args["held"], args["rows"], args["chunks"]):
        return UnitStatus.RANGE
    size = 4 if args["out"] == OutFormat.FLOAT32 else 2
    unit = min(size * pe.rows, 64)
    right = fits(pe, args) and d % unit == 0 and args["stride_d"] % unit == 0 and not (args["integer"] and args["out"] != OutFormat.FLOAT32)
    return UnitStatus.OK if right and not (args["bias"] and a % min(4 * pe.rows, 64)) else UnitStatus.RANGE


def finish(values: Bits, args: Args) -> NDArray[Any]:
    """Sums as they are written: uint32 or uint16 codes."""
    if args["relu"]:
        below = (values >> 31 != 0) & (bool(args["integer"]) | ~fp32.is_nan(values))
        values = np.where(below, 0, values).astype(np.uint32)
    if args["out"] == OutFormat.FLOAT32:
        return values
    return convert.narrow(values, "bfloat16" if args["out"] == OutFormat.BFLOAT16 else "float16")


def reduce(local: Bytes, pending: Pending, args: Args, a: int, d: int) -> UnitStatus:
    """Sum, finish and write into `local`.

    Raises:
        ValueError, TypeError: as `dot`.
    """
    _given(local, args, REDUCE_ARGS, a=a, d=d)
    bias = None
    if args["bias"]:
        bias = local[_inside(local, a + np.arange(4 * args["held"]), "bias")].view("<u4").astype(np.uint32)
    values = finish(sums(pending, bias), args)
    data = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"))).view(np.uint8)
    at = d + args["stride_d"] * np.arange(len(data))[:, None] + np.arange(data.shape[1])
    local[_inside(local, at, "result")] = data
    return UnitStatus.FORMAT if pending.bad else UnitStatus.OK
