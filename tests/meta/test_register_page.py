"""Tables of registers and records on the pages of blocks are those of spec/."""
from __future__ import annotations

import pytest

from spec import work_queue
from spec.fields import Record
from spec.params import config
from spec.registers import Register, node_registers
from tb.lib.simulators import ROOT


def rows(page: str, heading: str) -> list[str]:
    """Rows of the table under `heading`."""
    text = (ROOT / "docs" / "blocks" / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| `")]


def register_row(r: Register) -> str:
    return f"| `{r.name}` | {r.offset:#06x}" + (f" + {r.stride:#x}·i" if r.stride else "") + f" | {r.access} | {r.width} | {r.reset:#x} | {r.doc} |"


def record_rows(record: Record) -> list[str]:
    return [f"| `{f.name}` | {record.offsets[f.name]} | {f.width} | {f.doc} |" for f in record.fields if not f.name.startswith("_")]


@pytest.mark.parametrize(("page", "registers"), [("node.md", node_registers(config("tiny").node)), ("work_queue.md", work_queue.REGISTERS)], ids=["node", "work_queue"])
def test_every_register_is_on_the_page_as_it_is(page: str, registers: tuple[Register, ...]) -> None:
    assert rows(page, "Registers") == [register_row(r) for r in sorted(registers, key=lambda r: r.offset)]


@pytest.mark.parametrize(("heading", "record"), [("Descriptor", work_queue.JOB), ("Record", work_queue.JOB_RECORD)], ids=["descriptor", "record"])
def test_records_are_on_the_page_as_they_are(heading: str, record: Record) -> None:
    assert rows("work_queue.md", heading) == record_rows(record)
