"""A trained ranking model on the golden processing element: bits of the direct definition; within the format's error of torch's float32 outputs.

The bound, of each sample, in float64: a rounding moves the logit by at most its own error times the logit's derivative there, and all of them add up. Features,
weights, tables and what layers give are rounded once: an error of u |x| and half of the format's smallest number, u = 2^-(fraction bits + 1); a product's binary32
sum of c chunks adds (c + 2) 2^-24 of the sum of its magnitudes. To first order: what two roundings do to each other, u times as much, is left out.
"""
from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.pe.kernels.ranking import Ranking
from golden.pe.processing_element import ProcessingElement
from spec.isa import CpStatus
from spec.params import config
from spec.pe import DotFormat
from tb.pe.kernel_jobs import ranking_file

FORMATS = [DotFormat.BFLOAT16, DotFormat.FLOAT16, DotFormat.TFLOAT32]
SIGMOID = 2.0**-22  # more than two units in the last place of binary32 below 1
Floats = NDArray[np.float64]


class Errors:
    """The errors of a format's roundings, and what they do to the logits behind `slope`, their derivative there."""

    def __init__(self, fmt: DotFormat, samples: int):
        f = fmt.format
        self.lanes, self.u, self.least = fmt.lanes, 2.0 ** -(f.frac_bits + 1), 2.0 ** (f.min_quantum - 1)
        self.total = np.zeros(samples)

    def off(self, x: Floats) -> Floats:
        return self.u * np.abs(x) + self.least

    def rounded(self, slope: Floats, x: Floats) -> Floats:
        """`x` was rounded; the slope before that."""
        self.total += (np.abs(slope) * self.off(x)).reshape(len(slope), -1).sum(axis=1)
        return slope

    def linear(self, slope: Floats, x: Floats, w: Floats) -> Floats:
        """x @ w.T with rounded weights; the slope at `x`."""
        chunks = -(-x.shape[1] // self.lanes)
        self.total += (np.abs(slope) * (np.abs(x) @ (self.off(w) + (chunks + 2) * 2.0**-24 * np.abs(w)).T)).sum(axis=1)
        return slope @ w


def tower(x: Floats, m: dict[str, Floats], layers: list[str]) -> list[tuple[str, Floats, Floats]]:
    """(layer, its input, its output) of each."""
    steps = []
    for n in layers:
        y = np.maximum(x @ m[f"{n}.weight"].T + m[f"{n}.bias"], 0)
        steps.append((n, x, y))
        x = y
    return steps


def back(errors: Errors, slope: Floats, steps: list[tuple[str, Floats, Floats]], m: dict[str, Floats]) -> Floats:
    """The slope at the input of a tower."""
    for n, x, y in reversed(steps):
        slope = errors.linear(errors.rounded(slope, y) * (y > 0), x, m[f"{n}.weight"])
    return slope


def analysed(fmt: DotFormat, model: dict[str, NDArray[np.float32]], batch: dict[str, NDArray[np.int32]]) -> tuple[Floats, Floats]:
    """(exact logits, bounds of what the format's roundings make of them)."""
    m = {n: v.astype(np.float64) for n, v in model.items()}
    bottom = tower(batch["dense"].astype(np.float64), m, ["bottom.0", "bottom.2"])
    bags = [m["genre.weight"].T[batch["genres"][s:e]] for s, e in zip(batch["offsets"], batch["offsets"][1:], strict=False)]
    rows = [m[n][i] for n, i in zip([n for n in m if n.startswith("single.")], batch["categories"].T, strict=True)]
    v = np.stack([bottom[-1][2], np.array([b.sum(axis=0) for b in bags]), *rows], axis=1)
    first, second = np.triu_indices(v.shape[1], 1)
    dots = (v @ np.swapaxes(v, 1, 2))[:, first, second]
    top = tower(np.concatenate([v[:, 0], dots], axis=1), m, ["top.0", "top.2"])
    logit = top[-1][2] @ m["top.4.weight"].T + m["top.4.bias"]

    errors = Errors(fmt, len(v))
    slope = back(errors, errors.linear(np.ones_like(logit), top[-1][2], m["top.4.weight"]), top, m)
    of_dots = np.zeros((len(v), v.shape[1], v.shape[1]))
    of_dots[:, first, second] = errors.rounded(slope[:, v.shape[2]:], dots)
    of_v = (of_dots + np.swapaxes(of_dots, 1, 2)) @ v
    errors.total += (np.abs(slope[:, v.shape[2]:]) * 3 * 2.0**-24 * (np.abs(v) @ np.abs(np.swapaxes(v, 1, 2)))[:, first, second]).sum(axis=1)
    errors.rounded(of_v[:, 1:], v[:, 1:])
    errors.total += (np.abs(of_v[:, 1]) * np.array([errors.off(b).sum(axis=0) for b in bags])).sum(axis=1)
    errors.rounded(back(errors, of_v[:, 0] + slope[:, : v.shape[2]], bottom, m), bottom[0][1])
    return logit[:, 0], errors.total


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name.lower())
def test_forward(fmt: DotFormat) -> None:
    model, batch, torch = ranking_file()
    ranking, pe = Ranking(model, batch, fmt, base=4096), config("small").node.pe
    memory = np.concatenate([np.zeros(4096, np.uint8), ranking.image()])
    done = ProcessingElement(pe, memory).run(ranking.program(pe))
    assert {c.status for c in done} == {CpStatus.OK}
    got, want = ranking.results(memory), ranking.direct()
    assert all((got[n] == want[n]).all() for n in want) and not memory[:4096].any()

    exact, error = analysed(fmt, model, batch)
    bound = error + np.abs(torch["logit"] - exact)
    off = np.abs(got["logit"].view(np.float32) - torch["logit"].astype(np.float64))
    print(f"{fmt.name.lower()}: logits off by {off.max():.2e} at most, {np.max(off / bound):.3f} of the bound at most, which is {bound.max():.2e} at most")
    assert np.abs(torch["logit"] - exact).max() < 1e-5 and (off <= bound).all()
    assert off.max() > bound.max() / 100, "a bound that says nothing"
    chance = np.abs(got["probability"].view(np.float32).astype(np.float64) - torch["probability"])
    assert (chance <= bound / 4 + SIGMOID).all()  # a sigmoid is nowhere steeper than 1 / 4


def test_same_bits_on_every_configuration() -> None:
    model, batch, _ = ranking_file(40)
    ranking = Ranking(model, batch)
    for name in ("tiny", "mtia300"):
        memory = ranking.image()
        pe = config(name).node.pe
        ProcessingElement(pe, memory).run(ranking.program(pe))
        assert all((ranking.results(memory)[n] == codes).all() for n, codes in ranking.direct().items())


def test_what_the_file_holds() -> None:
    model, batch, torch = ranking_file()
    assert len(batch["dense"]) == len(torch["logit"]) == 256 and sum(v.size for v in model.values()) == 80393
    assert batch["offsets"][-1] == len(batch["genres"]) and (np.diff(batch["offsets"]) > 0).all()
    for k, name in enumerate(n for n in model if n.startswith("single.")):
        assert 0 <= batch["categories"][:, k].min() and batch["categories"][:, k].max() < len(model[name])


def test_refusals() -> None:
    model, batch, _ = ranking_file(3)
    with pytest.raises(ValueError, match=r"offsets of shape \(3,\); expected \(4,\)"):
        Ranking(model, batch | {"offsets": batch["offsets"][:-1]})
    with pytest.raises(ValueError, match="expected 24 from the bottom one, 39 to the top one"):
        Ranking({k: v for k, v in model.items() if k != "single.age.weight"}, batch | {"categories": batch["categories"][:, :4]})
