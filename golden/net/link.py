"""Timing of a link: when each beat is accepted and when it is offered at the far end (contract: docs/blocks/link.md).

Line time is counted in bytes. The line is free from byte time F on (cycle t covers byte times t*rate .. (t+1)*rate - 1). A beat is
accepted in the first cycle t that is not before its offer, after the last accepted beat's cycle, and with F < (t + 1) * rate; it
takes the line from max(F, t * rate) on for its cost. It is offered at the far end `latency` cycles after it was accepted.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spec.packet import MIN_FRAME, WIRE_OVERHEAD


def costs(frames: Sequence[int], beat_bytes: int = 64) -> np.ndarray:
    """Line bytes of every beat of frames of these lengths: valid bytes; the last one also padding to 60 and WIRE_OVERHEAD."""
    out: list[int] = []
    for n in frames:
        full, rest = divmod(n - 1, beat_bytes)
        out += [beat_bytes] * full
        out.append(rest + 1 + max(0, MIN_FRAME - n) + WIRE_OVERHEAD)
    return np.array(out, np.int64)


def accepts(cost: Sequence[int], rate: int, offers: Sequence[int] | None = None) -> np.ndarray:
    """Cycle in which each beat is accepted. `offers`: cycle from which each is offered; default: all wait from cycle 0 on."""
    free, last, out = 0, -1, []
    for k, c in enumerate(cost):
        t = max(last + 1, 0 if offers is None else int(offers[k]))
        t = max(t, free // rate)  # smallest t with free < (t + 1) * rate
        free = max(free, t * rate) + int(c)
        last = t
        out.append(t)
    return np.array(out, np.int64)


def departures(cost: Sequence[int], rate: int, latency: int, offers: Sequence[int] | None = None) -> np.ndarray:
    """Cycle in which each beat is offered at the far end, if the far end never waits."""
    return accepts(cost, rate, offers) + latency
