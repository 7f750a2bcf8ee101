"""Testplans and benches name each other exactly: no feature without a test, no test unknown to the plan."""
from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from tb.lib import registry
from tb.lib.simulators import ROOT


def cocotb_tests(module: str) -> set[str]:
    """Names of the cocotb tests of a bench module, read from its source."""
    tree = ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())
    names = set()
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef):
            for d in node.decorator_list:
                target = d.func if isinstance(d, ast.Call) else d
                if isinstance(target, ast.Attribute) and target.attr == "test":
                    names.add(node.name)
    return names


@pytest.mark.parametrize("name", sorted(registry.blocks()))
def test_plan_matches_bench(name: str) -> None:
    plan = registry.blocks()[name]
    per_bench = [cocotb_tests(b) for b in plan.bench]
    written = set().union(*per_bench)
    assert sum(map(len, per_bench)) == len(written), f"{plan.path.name}: a test's name occurs in two of its benches"
    assert plan.features, f"{plan.path.name}: no feature"
    assert not set(plan.tests) - written, f"{plan.path.name} names tests that do not exist"
    assert not written - set(plan.tests), f"{plan.bench} has tests that no feature names"


def test_every_bench_has_a_plan() -> None:
    benches = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts) for p in (ROOT / "tb").glob("*/test_*.py")
    }
    assert benches == {b for p in registry.blocks().values() for b in p.bench}


def test_unknown_key_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "x.toml"
    bad.write_text('[block]\nname = "x"\ntitel = "typo"\n')
    with pytest.raises(ValueError, match="titel"):
        registry.load(bad)


def test_feature_without_test_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "x.toml"
    bad.write_text('[block]\nname = "x"\n[[feature]]\nname = "f"\ntests = []\n')
    with pytest.raises(ValueError, match="feature"):
        registry.load(bad)


def test_group_names() -> None:
    """What `make sim BLOCK=…` takes: every unit of the processing element under its short name."""
    assert {"dpe", "re", "sfu", "numeric", "dma", "cp", "pe", "engines", "system"} <= set(registry.sets())
    assert set(registry.sets()["numeric"]) == {p.stem for p in (ROOT / "tb" / "numeric").glob("*.toml")}
    for name, members in registry.sets().items():
        run, left = registry.expand(name)
        assert run and sorted(run + left) == sorted(members), name
        assert name not in registry.blocks() or run[0] == name == registry.first(name).name, f"{name} is a block and another group"
        assert not [n for n in run if registry.blocks()[n].long and n != name], name
    assert [registry.first(g).name for g in ("dpe", "re", "numeric", "nmc")] == ["dot_product", "reduction", "convert", "nmc"]
    assert registry.expand("sfu_wide,re,sfu_wide") == (["sfu_wide", "reduction"], ["reduction_chain"])
    assert registry.expand("dma,dma_full")[0] == ["dma", "dma_full"]  # whoever names a block gets it


@pytest.mark.parametrize("call", [registry.find, registry.first, registry.expand])
def test_unknown_block_lists_what_there_is(call: Callable[[str], object]) -> None:
    with pytest.raises(KeyError, match="no block 'dqe'; blocks: .*nmc.*; groups: .*dpe, pe, re, sfu") as e:
        call("dqe")
    assert "sfu_wide" in str(e.value)


def test_one_block_is_not_a_group() -> None:
    with pytest.raises(KeyError, match="dpe stands for several blocks: dot_product, .*; name one, or make sim BLOCK=dpe"):
        registry.find("dpe")
