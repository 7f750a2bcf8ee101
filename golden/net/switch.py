"""The switch as a function: which frames leave each port, and the order that is promised (contract: docs/blocks/switch.md)."""
from __future__ import annotations

from collections.abc import Sequence

from spec.packet import MAC_BASE


def destination(frame: bytes, ports: int) -> int | None:
    """Port a frame goes to; None: dropped."""
    node = int.from_bytes(frame[:6], "big") - MAC_BASE
    return node if 0 <= node < ports else None


def route(inputs: Sequence[Sequence[bytes]]) -> tuple[list[list[list[bytes]]], int]:
    """``flows[output][input]``: frames in order; and how many are dropped. Between inputs any interleaving of whole frames is right."""
    n = len(inputs)
    flows: list[list[list[bytes]]] = [[[] for _ in range(n)] for _ in range(n)]
    dropped = 0
    for p, frames in enumerate(inputs):
        for frame in frames:
            q = destination(frame, n)
            if q is None:
                dropped += 1
            else:
                flows[q][p].append(frame)
    return flows, dropped
