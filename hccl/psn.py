"""First packet sequence numbers of connections: far from those of connections that were there before.

A packet of a closed connection may still be under way when its queue pairs are opened again. The receiver takes a request whose PSN
is the expected one, and the sender an acknowledgement whose PSN is outstanding; so what a new connection uses must be far from what
the old one used.

Rule: number k of a machine is ``(FIRST + k * STEP) mod 2^24``. STEP is 2^24 over the golden ratio, made odd: the numbers repeat after
2^24, and any n in a row are at least 2^24 / (2.7 n) apart. A number within FAR of where a queue pair that is opened stood when it was closed is
left out. Every machine starts at k = 0, so a program has the same numbers on every device.
"""
from __future__ import annotations

from collections.abc import Collection

BITS = 24
FIRST = 0xFFFFF0  # it wraps early in the first run
STEP = 0x9E3779
FAR = 1 << 20  # packets: many times a window
TRIES = 64


def distance(a: int, b: int) -> int:
    """Between two PSNs, the shorter way round."""
    d = (a - b) % (1 << BITS)
    return min(d, (1 << BITS) - d)


class PsnSequence:
    """The numbers of one machine.

    Attributes:
        open: queue pairs, as (node, number), that may have sent or received since their reset.
        left: where a queue pair stood when it was reset: next PSN to send, next expected.
    """

    def __init__(self) -> None:
        self.k = 0
        self.open: set[tuple[int, int]] = set()
        self.left: dict[tuple[int, int], tuple[int, int]] = {}

    def next(self, queue_pairs: Collection[tuple[int, int]] = ()) -> int:
        """First PSN for a connection of `queue_pairs`, far from where each stood; of the next TRIES numbers the farthest, when none is far."""
        avoid = [psn for qp in queue_pairs for psn in self.left.get(qp, ())]
        best, room, chosen = 0, -1, self.k
        for k in range(self.k, self.k + TRIES):
            psn = (FIRST + k * STEP) % (1 << BITS)
            near = min((distance(psn, x) for x in avoid), default=FAR)
            if near > room:
                best, room, chosen = psn, near, k
            if room >= FAR:
                break
        self.k = chosen + 1
        return best
