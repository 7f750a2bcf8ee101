"""Writes spec/sfu_table.py: `python -m tests.golden.sfu_generate` (needs mpmath; a test regenerates the table and compares).

Each segment's polynomial interpolates its function, scaled by the row's power of two, in the five Chebyshev nodes of the segment; in a segment
whose left end must be exact (`pinned`) it takes that value and interpolates the rest, (f(t) - f(0)) / t, in four nodes. tanh(a)/a is even, so next to
0 its quotient by t^2 is interpolated in three nodes: c1 is 0. An octave gets the fewest segments for which the error, relative to the function, stays
below the octave's target in the middle between nodes of its first, middle and last segment, and for which the coefficients fit.
"""
from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpmath import mp, mpf

TABLE = Path(__file__).resolve().parents[2] / "spec" / "sfu_table.py"
COEFFICIENT_BITS = (39, 36, 32, 27, 22)  # as in spec.sfu, which reads what is written here
FRACTION, EXPONENT_BITS, ROW_HEX = 38, 8, 41
GELU_END = 14.5  # from here a * Phi(-a) is below 2^-152 and rounds to zero: the rows repeat the last value
Function = Callable[[Any], Any]


def _nodes(n: int) -> list[Any]:
    return [(1 + mp.cos((2 * k + 1) * mp.pi / (2 * n))) / 2 for k in range(n)]


def _solve(f: Function, n: int) -> list[Any]:
    """Coefficients of the polynomial of degree n - 1 through f in the n nodes of [0, 1]."""
    x = _nodes(n)
    return list(mp.lu_solve(mp.matrix([[a**k for k in range(n)] for a in x]), mp.matrix([f(a) for a in x])))


def _segment(f: Function, low: Any, width: Any, kind: str) -> tuple[list[Any], int]:
    """Real coefficients of [low, low + width), scaled, and the exponent of the scale: the largest value is in (1/2, 1]."""
    top = max(f(low), f(low + width))
    e = int(mp.ceil(mp.log(top, 2)))
    scale = mpf(2) ** -e

    def g(t: Any) -> Any:
        return f(low + width * t) * scale

    if kind == "even":
        c0 = g(mpf(0))
        return [c0, mpf(0), *_solve(lambda t: (g(t) - c0) / t**2, 3)], e
    if kind == "pinned":
        c0 = g(mpf(0))
        return [c0, *_solve(lambda t: (g(t) - c0) / t, 4)], e
    return _solve(g, 5), e


def _error(f: Function, low: Any, width: Any, kind: str) -> Any:
    c, e = _segment(f, low, width, kind)
    worst = mpf(0)
    for k in range(11):
        t = (1 - mp.cos(k * mp.pi / 10)) / 2
        y = f(low + width * t)
        worst = max(worst, abs(sum(v * t**j for j, v in enumerate(c)) * mpf(2) ** e / y - 1))
    if any(abs(mp.nint(v * 2**FRACTION)) >= 1 << (b - 1) for v, b in zip(c[1:], COEFFICIENT_BITS[1:], strict=True)):
        return mpf(1)
    return worst


def _pack(c: list[Any], e: int) -> str:
    value, at = 0, 0
    for v, bits in zip(c, COEFFICIENT_BITS, strict=True):
        value |= (int(mp.nint(v * 2**FRACTION)) & (1 << bits) - 1) << at
        at += bits
    assert 0 <= 1 - e < 1 << EXPONENT_BITS and int(mp.nint(c[0] * 2**FRACTION)) < 1 << COEFFICIENT_BITS[0]
    return f"{value | (1 - e) << at:0{ROW_HEX}x}"


def _log(m: Any) -> Any:
    d = m - 1 if m < 1.5 else m / 2 - 1
    return mp.log1p(d) / d if d else mpf(1)


def _tanh(a: Any) -> Any:
    return mp.tanh(a) / a if a else mpf(1)


def _sigmoid(a: Any) -> Any:
    return 1 / (1 + mp.exp(a))


def _softplus(a: Any) -> Any:
    return mp.log1p(mp.exp(-a))


def _gelu(a: Any) -> Any:
    return mp.erfc(min(a, mpf(GELU_END)) / mp.sqrt(2)) / 2


#: name, function, first octave, last octave, kind of the first segment, bits of the error target per octave (the last one repeats).
#: exp2 has 64 segments, so that segment and place together are the 34 bits of the fraction.
PLAN: tuple[tuple[str, Function, int, int, str, tuple[float, ...]], ...] = (
    ("exp2", lambda m: mpf(2) ** (m - 1), 0, 0, "pinned", (44,)),
    ("reciprocal", lambda m: 1 / m, 0, 0, "pinned", (37,)),
    ("rsqrt", lambda m: 1 / mp.sqrt(m), 0, 1, "pinned", (37,)),
    ("log", _log, 0, 0, "pinned", (37,)),
    ("tanh", _tanh, -6, 3, "even", (37,)),
    ("sigmoid", _sigmoid, -5, 4, "pinned", (37, 37, 37, 37, 37, 37, 37, 35.5)),
    ("gelu", _gelu, -5, 3, "pinned", (37, 37, 37, 37, 37, 37, 36, 32, 31)),
    ("softplus", _softplus, -5, 4, "pinned", (37, 37, 37, 37, 37, 37, 37, 35.5)),
)


def _inside(f: Function, end: Any, width: Any) -> Function:
    """`f` up to `end`, where it keeps to the branch below: the next branch is not this segment's."""
    return lambda x: f(x) if x < end else f(end - width * mpf(2) ** -120)


def _kinds(first: int, e: int, kind: str, n: int) -> list[str]:
    """Kinds of the n segments of octave e: an argument that begins at 1 has its exact end there."""
    return [kind if e == first == 0 and k == 0 else "free" for k in range(n)]


def _bits(f: Function, first: int, e: int, kind: str, target: Any) -> int:
    low = mpf(2) ** e
    for bits in range(1, 11):
        n = 1 << bits
        width, kinds = low / n, _kinds(first, e, kind, n)
        if all(_error(_inside(f, low + (k + 1) * width, width), low + k * width, width, kinds[k]) < target for k in (0, n // 2 - 1, n // 2, n - 1)):
            return bits
    raise ValueError(f"no number of segments meets the target from {low}")


def octaves() -> list[tuple[str, int, int, tuple[tuple[int, int], ...]]]:
    """As spec.sfu_table.OCTAVES."""
    out, at = [], 0
    with mp.workprec(160):
        for name, f, first, last, kind, targets in PLAN:
            near, at = (at, at + 1) if first < 0 else (-1, at)
            assert first >= 0 or _error(f, mpf(0), mpf(2) ** first, kind) < mpf(2) ** -37, name
            places = []
            for e in range(first, last + 1):
                bits = _bits(f, first, e, kind, mpf(2) ** -targets[min(e - first, len(targets) - 1)])
                places.append((at, bits))
                at += 1 << bits
            out.append((name, first, near, tuple(places)))
    return out


def segments(layout: Any) -> list[tuple[Function, Any, Any, str]]:
    """(function, low end, width, kind) of every row of `layout`, in order."""
    out: list[tuple[Function, Any, Any, str]] = []
    for (_, f, first, _, kind, _), (_, _, near, places) in zip(PLAN, layout, strict=True):
        if near >= 0:
            out.append((f, mpf(0), mpf(2) ** first, kind))
        for o, (_, bits) in enumerate(places):
            low, n = mpf(2) ** (first + o), 1 << bits
            width = low / n
            out += [(_inside(f, low + (k + 1) * width, width), low + k * width, width, w) for k, w in enumerate(_kinds(first, first + o, kind, n))]
    return out


def row_text(segment: tuple[Function, Any, Any, str]) -> str:
    """The row's hexadecimal digits."""
    with mp.workprec(160):
        return _pack(*_segment(*segment))


def generate() -> str:
    """Text of spec/sfu_table.py."""
    layout = octaves()
    rows = [row_text(s) for s in segments(layout)]
    listing = "".join(f"    {o!r},\n" for o in layout)
    body = "".join(f'    "{x}"\n' for x in textwrap.wrap("".join(rows), 3 * ROW_HEX))
    return (
        '"""Segments of the special function unit and their coefficients, written by tests/golden/sfu_generate.py and read by spec/sfu.py."""\n'
        "from __future__ import annotations\n\n"
        "#: name, first octave, row below it, (base row, bits) of each octave\n"
        f"OCTAVES: tuple[tuple[str, int, int, tuple[tuple[int, int], ...]], ...] = (\n{listing})\n\n"
        f"#: {len(rows)} rows of {ROW_HEX} hexadecimal digits: from the least bit c0, c1, c2, c3, c4, 1 - e\n"
        f"TEXT = (\n{body})\n"
    )


if __name__ == "__main__":
    TABLE.write_text(generate())
