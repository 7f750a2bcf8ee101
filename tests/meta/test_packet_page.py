"""The tables of docs/blocks/packets.md are those of spec/packet.py, spec/wqe.py and spec/interfaces.py."""
from __future__ import annotations

from spec import packet as P
from spec.fields import Record
from spec.interfaces import DONE, NIC_REQUEST
from spec.packet import Opcode, Syndrome
from spec.wqe import CQE, WQE, Op, Status
from tb.lib.simulators import ROOT

HEADERS = {"Ethernet": P.ETH, "IPv4": P.IPV4, "UDP": P.UDP, "BTH": P.BTH, "RETH": P.RETH, "AETH": P.AETH, "ImmDt": P.IMM}


def header_rows() -> list[str]:
    out = ["| header | byte | bit | field | width |", "|---|---|---|---|---|"]
    for name, fields in HEADERS.items():
        at = 0
        for field, width in fields:
            out.append(f"| {name} | {at // 8} | {7 - at % 8} | {field.lstrip('_')} | {width} |")
            at += width
    return out


def opcode_rows() -> list[str]:
    out = ["| code | opcode | after the BTH |", "|---|---|---|"]
    for op in Opcode:
        after = [n for n, having in (("RETH", P.HAS_RETH), ("AETH", P.HAS_AETH), ("ImmDt", P.HAS_IMM)) if op in having]
        payload = [] if op in (Opcode.READ_REQUEST, Opcode.ACK) else ["payload"]
        out.append(f"| {int(op):#04x} | {op.name} | {', '.join([*after, *payload])} |")
    return out


def record_rows(record: Record) -> list[str]:
    out = ["| bits | byte | field | meaning |", "|---|---|---|---|"]
    for f in record.fields:
        at = record.offsets[f.name]
        name = "–" if f.name.startswith("_") else f"`{f.name}`"
        out.append(f"| {at + f.width - 1}:{at} | {at // 8} | {name} | {'reserved, 0' if f.name.startswith('_') else f.doc} |")
    return out


def code_rows(codes: type[Op] | type[Status] | type[Syndrome]) -> list[str]:
    return ["| code | name |", "|---|---|", *(f"| {int(c):#04x} | {c.name} |" for c in codes)]


TABLES = {
    "Headers": header_rows, "Opcodes": opcode_rows, "Syndromes": lambda: code_rows(Syndrome), "WQE": lambda: record_rows(WQE),
    "Operations": lambda: code_rows(Op), "CQE": lambda: record_rows(CQE), "Statuses": lambda: code_rows(Status),
    "NIC_REQUEST": lambda: record_rows(NIC_REQUEST), "DONE": lambda: record_rows(DONE),
}


def test_tables_are_those_of_the_specification() -> None:
    sections = (ROOT / "docs" / "blocks" / "packets.md").read_text().split("\n## ")[1:]
    found = {s.splitlines()[0]: [line for line in s.splitlines() if line.startswith("|")] for s in sections}
    assert found == {name: rows() for name, rows in TABLES.items()}
