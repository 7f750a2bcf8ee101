"""Numbers by Python fractions, straight from the format table: slow, short and unlike the code under test."""
from __future__ import annotations

from fractions import Fraction

from spec.formats import Format

INF, NAN = "inf", "nan"


def decode(code: int, f: Format) -> tuple[int, Fraction | str]:
    """(sign, magnitude), the magnitude a Fraction, INF or NAN."""
    sign = int(bool(code & f.sign_mask))
    if f.is_nan(code):
        return 0, NAN
    magnitude = code & f.magnitude_mask
    if magnitude == f.inf_code:
        return sign, INF
    field, frac = magnitude >> f.frac_bits, Fraction(magnitude & f.frac_mask, 1 << f.frac_bits)
    if f.has_subnormals and field == 0:
        return sign, Fraction(2) ** (1 - f.bias) * frac
    return sign, Fraction(2) ** (field - f.bias) * (1 + frac)


def value(code: int, f: Format) -> Fraction:
    """Signed finite value."""
    sign, m = decode(code, f)
    assert isinstance(m, Fraction), hex(code)
    return -m if sign else m


def encode(x: Fraction, f: Format, zero_sign: int = 0, mode: str = "ovf") -> int:
    """RNE code of an exact number; `zero_sign` is the sign of an exact zero."""
    sign = int(x < 0) if x else zero_sign
    x = abs(x)
    code = 0
    if x:
        exponent = x.numerator.bit_length() - x.denominator.bit_length()
        exponent -= x < Fraction(2) ** exponent
        quantum = max(exponent, 1 - f.bias) - f.frac_bits
        steps = round(x / Fraction(2) ** quantum)  # Python rounds a Fraction half to even
        code = ((quantum + f.frac_bits + f.bias - 1) << f.frac_bits) + steps
    if code > f.max_code:
        if mode == "sat" or f.nan_code is None:
            code = f.max_code
        elif f.inf_code is None:
            return f.nan_code
        else:
            code = f.inf_code
    return code | (f.sign_mask if sign else 0)
