"""Coverage bins hit by the tests of one simulation; written as JSON when the simulation ends."""
from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from pathlib import Path

_bins: Counter[str] = Counter()


def hit(block: str, name: str, count: int = 1) -> None:
    _bins[name] += count
    _save()


_last = 0


def _save(force: bool = False) -> None:
    global _last
    if "TAWNY_BENCH" not in os.environ:  # not inside a simulation
        return
    total = sum(_bins.values())
    if force or total >= _last * 2 or total < 64:
        _last = total
        Path("coverage.json").write_text(json.dumps({"bins": dict(_bins)}))


atexit.register(_save, True)
