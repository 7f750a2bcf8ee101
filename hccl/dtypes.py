"""Element types and reductions: what a type is, which ops it has, and who reduces it.

Near-memory compute reduces float32, bfloat16, float16 and int32 by sum, min and max, and multiplies a float result by a scale. `engine_of` says
which of its types carries out an op of an element type bit for bit: a complex sum is a sum of floats, and a uint32 sum is an int32 sum. All other
reductions are the host's (`hccl.arith`); what only moves needs no arithmetic and any type.
"""
from __future__ import annotations

from dataclasses import dataclass

from hccl.errors import UsageError
from spec.wqe import DType

ARITHMETIC = ("sum", "prod", "min", "max", "avg", "premul_sum")
BITWISE = ("band", "bor", "bxor")
OPS = (*ARITHMETIC, *BITWISE)


@dataclass(frozen=True, kw_only=True)
class ElementType:
    """An element type.

    Attributes:
        size: bytes.
        kind: float, int, uint, bool, complex, or opaque: moved, never reduced.
        native: NumPy's name of it; None where NumPy has none.
        bits: the unsigned NumPy type that carries its bit patterns where the dtype is given.
    """

    name: str
    size: int
    kind: str
    native: str | None = None
    bits: str | None = None


def _types() -> dict[str, ElementType]:
    rows = [
        ("float32", 4, "float", True), ("bfloat16", 2, "float", False), ("float16", 2, "float", True), ("int32", 4, "int", True),
        ("float64", 8, "float", True), ("int8", 1, "int", True), ("int16", 2, "int", True), ("int64", 8, "int", True),
        ("uint8", 1, "uint", True), ("uint16", 2, "uint", True), ("uint32", 4, "uint", True), ("uint64", 8, "uint", True),
        ("bool", 1, "bool", True), ("complex64", 8, "complex", True), ("complex128", 16, "complex", True), ("complex32", 4, "complex", False),
        ("float8_e4m3fn", 1, "float", False), ("float8_e5m2", 1, "float", False), ("float8_e4m3fnuz", 1, "opaque", False),
        ("float8_e5m2fnuz", 1, "opaque", False), ("float8_e8m0fnu", 1, "opaque", False), ("float4_e2m1fn_x2", 1, "opaque", False),
    ]  # fmt: skip
    return {
        name: ElementType(name=name, size=size, kind=kind, native=name if native else None, bits=None if native else f"uint{8 * size}")
        for name, size, kind, native in rows
    }


DTYPES = _types()
_ENGINE: dict[str, DType] = {"float32": DType.FLOAT32, "bfloat16": DType.BFLOAT16, "float16": DType.FLOAT16, "int32": DType.INT32}
_ENGINE_SUM = {"complex64": DType.FLOAT32, "complex32": DType.FLOAT16, "uint32": DType.INT32}
COMPONENT = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
OPS_OF = {
    "float": ARITHMETIC, "int": OPS, "uint": OPS, "bool": ("sum", "prod", "min", "max", *BITWISE),
    "complex": ("sum", "prod", "avg", "premul_sum"), "opaque": (),
}  # fmt: skip


def engine_of(dtype: str, op: str, scaled: bool = False) -> DType | None:
    """Type in which near-memory compute carries out `op` on `dtype`, with the scale of an average if `scaled`; None: it cannot."""
    known = _ENGINE if op in ("min", "max") else _ENGINE | _ENGINE_SUM if op in ("sum", "avg", "premul_sum") else {}
    found = known.get(dtype)
    return None if scaled and found is DType.INT32 else found


def check_reduction(who: str, dtype: str, op: str) -> None:
    """Raises: UsageError: an unknown dtype or op, or one that the other does not have."""
    if not isinstance(op, str) or op not in OPS:
        raise UsageError(f"{who}: op {op!r} is not supported; expected one of {', '.join(OPS)}")
    check_dtype(who, dtype)
    ops = OPS_OF[DTYPES[dtype].kind]
    if op not in ops:
        expected = f"one of {', '.join(ops)}" if ops else "a collective that only moves it"
        raise UsageError(f"{who}: {op} of {dtype} is not supported; expected {expected}")


def check_dtype(who: str, dtype: object) -> None:
    """Raises: UsageError: not the name of an element type."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UsageError(f"{who}: dtype {dtype!r} is not supported; expected one of {', '.join(DTYPES)}")


def itemsize(dtype: str) -> int:
    return DTYPES[dtype].size
