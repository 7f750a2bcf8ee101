"""The one table of number formats: everything a converter or an adder needs, as plain data.

Names are those of ml_dtypes; they carry the special-value rules (`fn`: finite, no infinity; `u`: no sign). A code
holds, from the top, sign (if `signed`), `exp_bits` of biased exponent, `frac_bits` of fraction. For a float format::

    exponent field > 0:   (-1)^sign * 2^(exponent - bias)   * (1 + fraction / 2^frac_bits)
    exponent field = 0:   (-1)^sign * 2^(1 - bias)          * fraction / 2^frac_bits          (`has_subnormals`)

Formats without subnormals (float8_e8m0fnu) have no zero either: field 0 is an ordinary exponent.

NaN codes, by `nan`: ``ieee``: top exponent field, fraction not 0 (0 is infinity). ``all_ones``: all bits below the
sign 1, the rest of the top binade is finite. ``none``: no NaN; every code is a number.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAN_RULES = ("ieee", "all_ones", "none")


@dataclass(frozen=True, kw_only=True)
class Format:
    """One element format. `exp_bits` 0 marks a two's-complement or unsigned integer.

    Attributes:
        name: as in ml_dtypes and NumPy.
        bits: width of a code; a code sits in the low bits of its container.
        signed: top bit is a sign.
        exp_bits, frac_bits, bias: see the module's text; 0 for integers.
        has_inf: top exponent field with fraction 0 is infinity.
        nan: one of `NAN_RULES`.
        has_subnormals: exponent field 0 means zero and subnormals.

    Raises:
        ValueError: the widths do not add up, or the NaN rule is unknown.
    """

    name: str
    bits: int
    signed: bool = True
    exp_bits: int = 0
    frac_bits: int = 0
    bias: int = 0
    has_inf: bool = False
    nan: str = "none"
    has_subnormals: bool = True

    def __post_init__(self) -> None:
        if self.exp_bits and self.signed + self.exp_bits + self.frac_bits != self.bits:
            raise ValueError(
                f"Format {self.name}: sign, exponent and fraction fill "
                f"{self.signed + self.exp_bits + self.frac_bits} bits, expected {self.bits}"
            )
        if self.nan not in NAN_RULES:
            raise ValueError(f"Format {self.name}.nan = {self.nan!r}: expected one of {', '.join(NAN_RULES)}")
        if self.has_inf and self.nan != "ieee":
            raise ValueError(f"Format {self.name}: has_inf needs nan = 'ieee', not {self.nan!r}")

    # Shape of a code

    @property
    def is_float(self) -> bool:
        return self.exp_bits > 0

    @property
    def container_bits(self) -> int:
        """Smallest of 8, 16, 32, 64 that holds a code."""
        return next(w for w in (8, 16, 32, 64) if w >= self.bits)

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    @property
    def magnitude_mask(self) -> int:
        """All bits below the sign."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def sign_mask(self) -> int:
        """The sign bit; 0 for an unsigned format."""
        return self.mask ^ self.magnitude_mask

    @property
    def exp_mask(self) -> int:
        """Largest exponent field, right-aligned."""
        return (1 << self.exp_bits) - 1

    @property
    def frac_mask(self) -> int:
        return (1 << self.frac_bits) - 1

    # Special codes (positive ones; add `sign_mask` for the negative)

    @property
    def inf_code(self) -> int | None:
        return self.exp_mask << self.frac_bits if self.has_inf else None

    @property
    def nan_code(self) -> int | None:
        """The canonical NaN: positive, quiet."""
        if self.nan == "ieee":
            return self.exp_mask << self.frac_bits | 1 << (self.frac_bits - 1)
        return self.magnitude_mask if self.nan == "all_ones" else None

    @property
    def max_code(self) -> int:
        """Largest finite number."""
        if self.nan == "ieee":
            return (self.exp_mask << self.frac_bits) - 1
        return self.magnitude_mask - (self.nan == "all_ones")

    def is_nan(self, code: int) -> bool:
        magnitude = code & self.magnitude_mask
        if self.nan == "ieee":
            return magnitude > self.exp_mask << self.frac_bits
        return self.nan == "all_ones" and magnitude == self.magnitude_mask

    # Values

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number (and of every subnormal)."""
        return 1 - self.bias if self.has_subnormals else -self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number."""
        return (self.max_code >> self.frac_bits) - self.bias

    @property
    def min_quantum(self) -> int:
        """Exponent of the least bit of a subnormal: every finite number is a multiple of 2^min_quantum."""
        return self.min_exponent - self.frac_bits

    @property
    def max(self) -> float | int:
        """Largest finite number, exactly."""
        if not self.is_float:
            return (1 << (self.bits - self.signed)) - 1
        significand = (self.max_code & self.frac_mask) | 1 << self.frac_bits
        return float(significand) * 2.0 ** (self.max_exponent - self.frac_bits)

    @property
    def min(self) -> float | int:
        """Lowest finite number, exactly."""
        if not self.is_float:
            return -(1 << (self.bits - 1)) if self.signed else 0
        return -self.max if self.signed else 2.0**self.min_exponent

    @property
    def min_normal(self) -> float | int:
        return 2.0**self.min_exponent if self.is_float else 1

    @property
    def min_subnormal(self) -> float | int:
        """Smallest number above 0 (of a format without subnormals: its smallest number)."""
        return 2.0**self.min_quantum if self.is_float and self.has_subnormals else self.min_normal


def _float(name: str, bits: int, exp_bits: int, bias: int, *, signed: bool = True, **kw: Any) -> Format:
    frac = bits - exp_bits - signed
    return Format(name=name, bits=bits, signed=signed, exp_bits=exp_bits, frac_bits=frac, bias=bias, **kw)


FLOAT32 = _float("float32", 32, 8, 127, has_inf=True, nan="ieee")
TFLOAT32 = _float("tfloat32", 19, 8, 127, has_inf=True, nan="ieee")
BFLOAT16 = _float("bfloat16", 16, 8, 127, has_inf=True, nan="ieee")
FLOAT16 = _float("float16", 16, 5, 15, has_inf=True, nan="ieee")
FLOAT8_E4M3FN = _float("float8_e4m3fn", 8, 4, 7, nan="all_ones")
FLOAT8_E5M2 = _float("float8_e5m2", 8, 5, 15, has_inf=True, nan="ieee")
FLOAT6_E3M2FN = _float("float6_e3m2fn", 6, 3, 3)
FLOAT6_E2M3FN = _float("float6_e2m3fn", 6, 2, 1)
FLOAT4_E2M1FN = _float("float4_e2m1fn", 4, 2, 1)
FLOAT8_E8M0FNU = _float("float8_e8m0fnu", 8, 8, 127, signed=False, nan="all_ones", has_subnormals=False)
INT8 = Format(name="int8", bits=8)
INT16 = Format(name="int16", bits=16)
INT32 = Format(name="int32", bits=32)
INT64 = Format(name="int64", bits=64)
UINT8 = Format(name="uint8", bits=8, signed=False)

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        FLOAT32, TFLOAT32, BFLOAT16, FLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT6_E3M2FN, FLOAT6_E2M3FN, FLOAT4_E2M1FN,
        FLOAT8_E8M0FNU, INT8, INT16, INT32, INT64, UINT8,
    )
}


def format_of(name: str) -> Format:
    """The named format.

    Raises:
        ValueError: no such name; the message lists them.
    """
    if not isinstance(name, str) or name not in FORMATS:
        raise ValueError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]
