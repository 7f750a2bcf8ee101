"""What an algorithm is made of, and what a plan may use of a machine."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNIT = 64
SLICE_MAX = 32 << 10  # bytes, as long as a channel then has no more than SLICES_MAX slices of a range
SLICES_MAX = 16
COPY_MAX = 1 << 30


class Move(NamedTuple):
    """`kind`:

    - copy: rank `dst` takes over what `src` holds of bytes ``lo … hi`` of the vector;
    - reduce: `dst` adds it to what it holds;
    - first: as copy, and the own contribution of `dst` is still to come;
    - own: `dst` (= `src`) adds its input to what it holds, after a "first".

    `raw`: not what `src` holds but its own input.
    """

    src: int
    dst: int
    lo: int
    hi: int
    kind: str = "copy"
    raw: bool = False


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a plan may use: channels at most, bytes of a packet, operations in a window, depths and number of queue pairs."""

    channels: int = 4
    mtu: int = 4096
    window: int = 32
    rq_depth: int = 32
    sq_depth: int = 32
    qps: int = 16
    slots: int = 8
    slice_size: int | None = None


def slice_bytes(chunk: int, channels: int, mtu: int) -> int:
    """Bytes of a slice for ranges of at most `chunk` bytes: whole packets, at least one.

    One slice a channel is enough to keep the link busy while another is reduced, and long slices cost the fewest fixed
    latencies; past SLICE_MAX the last slice's own time shows at the end, so there are more of them.
    """
    want = min(-(-chunk // channels), SLICE_MAX)
    want = max(want, -(-chunk // (channels * SLICES_MAX)), 1)
    return -(-want // mtu) * mtu
