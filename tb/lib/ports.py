"""How the ports of a block are driven in a bench: shared by the generator of the top and by the running test."""
from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import ceil


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


def hex_lines(data, width: int) -> str:
    """$readmemh text of `data`: (n, ceil(width/8)) uint8 rows, little-endian."""
    digits, nbytes = ceil(width / 4), data.shape[1]
    text = data[:, ::-1].tobytes().hex("\n", nbytes)
    return "".join(x[-digits:] + "\n" for x in text.split("\n")) if digits < 2 * nbytes else text + "\n"
