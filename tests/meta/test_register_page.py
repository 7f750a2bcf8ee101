"""The register table of docs/blocks/node.md is that of spec/registers.py."""
from __future__ import annotations

from spec.params import config
from spec.registers import node_registers
from tb.lib.simulators import ROOT


def test_every_register_is_on_the_page_as_it_is() -> None:
    page = (ROOT / "docs" / "blocks" / "node.md").read_text().split("## Registers")[1].split("## Bench")[0]
    got = [line for line in page.splitlines() if line.startswith("| `")]
    want = [
        f"| `{r.name}` | {r.offset:#06x}" + (f" + {r.stride:#x}·i" if r.stride else "") + f" | {r.access} | {r.width} | {r.reset:#x} | {r.doc} |"
        for r in sorted(node_registers(config("tiny").node), key=lambda r: r.offset)
    ]
    assert got == want
