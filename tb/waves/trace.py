"""A trace file (FST or VCD), read with pywellen."""
from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

from tb.lib.simulators import MissingTool

Value = int | str  # a string when bits are unknown


class Trace:
    """Signals by full name.

    Args:
        path: FST or VCD file.

    Raises:
        MissingTool: pywellen is not installed.
    """

    def __init__(self, path: Path):
        try:
            import pywellen
        except ImportError as e:
            raise MissingTool("the Python package pywellen is not installed; `make setup` installs it (extra: waves)") from e
        self.path = path
        self.wave = pywellen.Waveform(str(path))
        self._vars: dict[str, Any] = {}
        for v in self.wave.all_vars():
            self._vars.setdefault(v.full_name, v)
        self._changes: dict[str, tuple[list[int], list[Value]]] = {}

    @property
    def widths(self) -> dict[str, int]:
        """Bits of every signal by full name."""
        return {n: v.bitwidth or 1 for n, v in self._vars.items()}

    def changes(self, name: str) -> tuple[list[int], list[Value]]:
        """Times and values of a signal."""
        if name not in self._changes:
            if name not in self._vars:
                raise KeyError(f"{self.path}: no signal {name!r}")
            pairs = list(self._vars[name].signal)
            self._changes[name] = [t for t, _ in pairs], [v for _, v in pairs]
        return self._changes[name]

    def at(self, name: str, time: int) -> Value | None:
        """Value at `time`; None before the first one."""
        times, values = self.changes(name)
        i = bisect_right(times, time)
        return values[i - 1] if i else None

    def edges(self, clock: str) -> list[int]:
        """Times of the rising edges of `clock`."""
        times, values = self.changes(clock)
        return [t for i, t in enumerate(times) if values[i] == 1 and i and values[i - 1] == 0]
