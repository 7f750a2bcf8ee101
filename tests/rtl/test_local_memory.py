"""Local memory: sizes that are refused, and the smallest and largest shapes convert, with one array a bank."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from rtl.emit import emit
from rtl.pe.local_memory import LocalMemory
from spec.params import PeParams


@pytest.mark.parametrize("pe, ports, message", [
    (PeParams(), 0, "ports = 0: expected an integer from 1 to 16"), (PeParams(), 17, "ports = 17"),
    (PeParams(local_bytes=4096, local_banks=64), 2, "4096 bytes in 64 banks; expected two rows of 64 bytes or more in each"),
])
def test_refused(pe: PeParams, ports: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalMemory(pe, ports)


@pytest.mark.parametrize("pe, ports", [
    (PeParams(local_bytes=4096, local_banks=1), 1), (PeParams(local_bytes=4096, local_banks=1, ecc=True), 1),
    (PeParams(local_bytes=4096, local_banks=32), 3), (PeParams(local_bytes=512 << 10, local_banks=16, ecc=True), 16),
])
def test_shapes(pe: PeParams, ports: int, tmp_path: Path) -> None:
    text = emit(LocalMemory(pe, ports), tmp_path, top="local").verilog.read_text()
    rows, width = pe.local_bytes // 64 // pe.local_banks, 576 if pe.ecc else 512
    assert re.search(rf"reg \[{width - 1}:0\] mem \[{rows - 1}:0\];", text), "the array of a bank"
    assert len(re.findall(r"LocalBank_\w+ bank\d+ \(", text)) == pe.local_banks
