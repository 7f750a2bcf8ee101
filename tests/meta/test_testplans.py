"""Testplans and benches name each other exactly: no feature without a test, no test unknown to the plan."""
from __future__ import annotations

import ast
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
