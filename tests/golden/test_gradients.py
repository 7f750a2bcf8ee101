"""The captured gradients: what the file promises, and reductions of them."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from golden.mem import nmc
from golden.numeric import convert
from spec.wqe import DType, ReduceOp

FILE = Path(__file__).parents[2] / "examples" / "data" / "gradients.npz"
RANKS = 4


@pytest.fixture(scope="module")
def file():
    with np.load(FILE, allow_pickle=False) as z:
        return {k: z[k] for k in z.files}


@pytest.fixture(scope="module")
def meta(file):
    return json.loads(str(file["meta"]))


@pytest.fixture(scope="module")
def grads(file):
    return [file[f"rank{r}"] for r in range(RANKS)]


def test_shape_and_size(file, meta, grads):
    assert sorted(file) == ["meta", "rank0", "rank1", "rank2", "rank3"]
    assert meta["ranks"] == RANKS
    for g in grads:
        assert (g.dtype, g.shape) == (np.float32, (meta["elements"],))
        assert 256 << 10 <= g.nbytes <= 400 << 10
    assert FILE.stat().st_size < 2 << 20


def test_parameters_tile_the_vector(meta):
    at = 0
    for p in meta["params"]:
        assert p["offset"] == at, p["name"]
        at += int(np.prod(p["shape"]))
    assert at == meta["elements"]
    names = [p["name"] for p in meta["params"]]
    assert len(set(names)) == len(names)
    for table in ("user", "item", "gender", "age", "occupation"):
        assert f"single.{table}.weight" in names
    assert "genre.weight" in names


def test_says_where_it_comes_from(meta):
    assert "GroupLens" in meta["dataset"] and "gradients only" in meta["dataset"]
    assert {"torch", "numpy", "seed", "batch", "warmup"} <= set(meta)


def test_finite_and_different_on_every_rank(grads):
    for g in grads:
        assert np.isfinite(g).all()
        assert np.any(g)
    for i in range(RANKS):
        for j in range(i):
            assert not np.array_equal(grads[i], grads[j])


def test_untouched_embedding_rows_are_zero(meta, grads):
    by_name = {p["name"]: p for p in meta["params"]}
    touched = []
    for table in ("user", "item"):
        p = by_name[f"single.{table}.weight"]
        for g in grads:
            rows = g[p["offset"] : p["offset"] + int(np.prod(p["shape"]))].reshape(p["shape"])
            used = rows.any(axis=1)
            assert 0 < used.sum() <= meta["batch"] < len(rows)
            touched.append(tuple(np.flatnonzero(used)))
    assert len(set(touched)) == len(touched)  # each rank saw other users and items


def test_magnitudes_span_what_a_format_must_hold(grads):
    every = np.abs(np.concatenate(grads))
    every = every[every > 0]
    assert every.max() > 2.0**-6
    assert every.min() < 2.0**-24  # below float16's smallest number: why such gradients travel as bfloat16
    assert every.min() > 2.0**-126


def test_sum_of_all_ranks_in_rank_order(grads):
    total, plain = grads[0].view(np.uint8), grads[0]
    for g in grads[1:]:
        total = nmc.reduce(total, g.view(np.uint8), DType.FLOAT32, ReduceOp.SUM)
        plain = plain + g
    np.testing.assert_array_equal(total, plain.view(np.uint8))


def test_average_by_final_scale_equals_division_by_a_power_of_two(grads):
    a, b = grads[0].view(np.uint8), grads[1].view(np.uint8)
    half = int(np.float32(0.5).view(np.uint32))
    got = nmc.reduce(a, b, DType.FLOAT32, ReduceOp.SUM, half).view(np.float32)
    np.testing.assert_array_equal(got, (grads[0] + grads[1]) / 2)


def test_bfloat16_made_by_rounding(grads):
    """The user's path: float32 rounded to bfloat16, reduced; each element within one rounding of the exact sum."""
    a, b = (convert.narrow(g.view(np.uint32), "bfloat16") for g in grads[:2])
    got = nmc.reduce(a.view(np.uint8), b.view(np.uint8), DType.BFLOAT16, ReduceOp.SUM).view(np.uint16)
    exact = sum(convert.widen(x, "bfloat16").view(np.float32).astype(np.float64) for x in (a, b))
    error = np.abs(convert.widen(got, "bfloat16").view(np.float32) - exact)
    assert (error <= np.abs(exact) * (2.0**-8 + 2.0**-23)).all()
    assert (error > 0).any()
