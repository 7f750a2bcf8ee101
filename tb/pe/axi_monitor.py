"""Rules of an AXI4 write and read burst, looked at from outside: one check per rule, on records of what was handed over."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BEAT, PAGE, INCR = 64, 4096, 1


class Illegal(AssertionError):
    """A rule was broken; the message names it."""


@dataclass
class Address:
    addr: int
    len: int
    size: int
    burst: int
    id: int


@dataclass
class Beat:
    strb: int
    last: int


def check_address(a: Address) -> None:
    """Whole words, INCR, id 0, inside one page. An unaligned start is legal AXI: it ends where its aligned words end."""
    if a.size != 6 or a.burst != INCR or a.id:
        raise Illegal(f"{a}: expected size 6, INCR, id 0")
    first = a.addr // BEAT * BEAT
    if first // PAGE != (first + (a.len + 1) * BEAT - 1) // PAGE:
        raise Illegal(f"{a} crosses 4 KiB")


def check_write(a: Address, beats: list[Beat]) -> None:
    """`len` + 1 beats, WLAST on the last alone; strobes contiguous, and only the first and the last word may be part (a row is one run of bytes)."""
    if [x.last for x in beats] != [0] * a.len + [1]:
        raise Illegal(f"{a}: WLAST {[x.last for x in beats]}")
    for k, x in enumerate(beats):
        low = x.strb & -x.strb
        if x.strb == 0 or (x.strb + low) & x.strb:
            raise Illegal(f"{a}: strobes {x.strb:#x} of beat {k} are not one run")
        if k and not x.strb & 1 or k < a.len and not x.strb >> BEAT - 1:
            raise Illegal(f"{a}: strobes {x.strb:#x} of beat {k} leave a gap inside the burst")


@dataclass
class Monitor:
    """Handshakes of a cycle at a time on the pins `prefix`; AW and W are paired in order."""

    dut: Any
    prefix: str = "pin"
    reads: list[Address] = field(default_factory=list)
    writes: list[tuple[Address, list[Beat]]] = field(default_factory=list)
    r_beats: int = 0
    responses: int = 0

    def __post_init__(self) -> None:
        names = {"aw": ("addr", "len", "size", "burst", "id"), "ar": ("addr", "len", "size", "burst", "id"), "w": ("strb", "last"),
                 "r": ("id", "last"), "b": ("id",)}
        self._pins = {c: [getattr(self.dut, f"{self.prefix}_{c}{k}") for k in ("valid", "ready", *f)] for c, f in names.items()}
        self._aw: list[Address] = []
        self._w: list[list[Beat]] = [[]]

    def _moved(self, channel: str) -> list[int] | None:
        valid, ready, *rest = self._pins[channel]
        return [int(p.value) for p in rest] if int(valid.value) and int(ready.value) else None

    def sample(self) -> None:
        """Call once a cycle, when pins are steady."""
        if (x := self._moved("ar")) is not None:
            self.reads.append(Address(*x))
            check_address(self.reads[-1])
        if (x := self._moved("aw")) is not None:
            self._aw.append(Address(*x))
            check_address(self._aw[-1])
        if (x := self._moved("w")) is not None:
            self._w[-1].append(Beat(*x))
            if x[1]:
                self._w.append([])
        while self._aw and len(self._w) > 1:
            a, beats = self._aw.pop(0), self._w.pop(0)
            check_write(a, beats)
            self.writes.append((a, beats))
        if (x := self._moved("r")) is not None:
            self.r_beats += 1
        if (x := self._moved("b")) is not None:
            self.responses += 1
            if self.responses > len(self.writes):
                raise Illegal("a response before the last word of its burst")

    def done(self) -> None:
        """Nothing is left half way."""
        if self._aw or self._w != [[]] or self.responses != len(self.writes) or self.r_beats != sum(a.len + 1 for a in self.reads):
            raise Illegal(f"left over: addresses {self._aw}, words {self._w}, {self.responses} responses of {len(self.writes)}, {self.r_beats} beats")
