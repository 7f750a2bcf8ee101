"""Clocks of the measurements: CPU seconds of this process and of the programs it ran, not wall time, so that a busy machine disturbs little."""
from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Spent:
    """CPU and wall seconds of a block of code."""

    cpu: float = 0.0
    wall: float = 0.0


def cpu_seconds() -> float:
    """User and system time of this process and of its children that ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))


@contextmanager
def spent() -> Iterator[Spent]:
    """``with spent() as s: …`` then ``s.cpu``, ``s.wall``."""
    s, cpu, wall = Spent(), cpu_seconds(), time.perf_counter()
    try:
        yield s
    finally:
        s.cpu, s.wall = cpu_seconds() - cpu, time.perf_counter() - wall


def machine() -> dict[str, Any]:
    """CPU model, cores, load averages, date: what figures of time depend on."""
    model = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next((x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")), model)
    return {
        "cpu": model, "cores": os.cpu_count(), "load": [round(x, 1) for x in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d"), "python": platform.python_version(),
    }
