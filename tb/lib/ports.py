"""How the ports of a block are driven in a bench: shared by the generator of the top and by the running test."""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

CYCLE = 2  # nanoseconds a clock cycle


@dataclass(frozen=True, kw_only=True)
class TopPort:
    """How one port of the block is driven. `kind`: source, sink, memory, in, out."""

    name: str
    kind: str
    width: int = 0
    addr_width: int = 0
    id_width: int = 0
    data_bytes: int = 0
    size_bytes: int = 0
    depth: int = 0


def describe(ports: list[TopPort]) -> str:
    return json.dumps([asdict(p) for p in ports])


def memory_image(rows: Any) -> bytes:
    """What $fread takes for `rows`, (n, bytes of a word) uint8, little-endian: whole bytes a word, highest first."""
    return rows[:, ::-1].tobytes()
