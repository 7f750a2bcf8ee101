"""Capture files of links: pcapng (IETF draft-ietf-opsawg-pcapng), an interface of Ethernet frames a link, nanosecond timestamps.

Written by hand because the format's three blocks are shorter than the adaptation of a library: scapy's writer stamps microseconds.
"""
from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType

import numpy as np

LINKTYPE_ETHERNET = 1
_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_TSRESOL, _NAME = 9, 2


def link_names(nodes: int) -> tuple[str, ...]:
    """Interfaces of a system's capture: of each node in turn what it sends and what reaches it."""
    return tuple(f"node{i}.{way}" for i in range(nodes) for way in ("tx", "rx"))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


class Writer:
    """Write frames to `path`.

    Args:
        cycle_ns: nanoseconds of a clock cycle. interfaces: names of the links captured. append: go on with a file of the same interfaces.
    """

    def __init__(self, path: str | Path, *, cycle_ns: float = 1.0, interfaces: tuple[str, ...] = ("link",), append: bool = False):
        self.cycle_ns = cycle_ns
        self.frames = 0
        self._parts: dict[int, list[bytes]] = {}  # frames under way
        self._file = Path(path).open("ab" if append else "wb")
        if append:
            return
        self._block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
        for name in interfaces:
            options = _option(_NAME, name.encode()) + _option(_TSRESOL, b"\x09") + _option(0, b"")
            self._block(_INTERFACE, struct.pack("<HHI", LINKTYPE_ETHERNET, 0, 0) + options)

    def _block(self, kind: int, body: bytes) -> None:
        total = 12 + len(body)
        self._file.write(struct.pack("<II", kind, total) + body + struct.pack("<I", total))

    def frame(self, cycle: int, data: bytes, interface: int = 0) -> None:
        """One frame, from its Ethernet header on, seen at `cycle`."""
        ns = round(cycle * self.cycle_ns)
        head = struct.pack("<IIIII", interface, ns >> 32, ns & 0xFFFFFFFF, len(data), len(data))
        self._block(_PACKET, head + data + bytes(-len(data) % 4))
        self.frames += 1

    def flit(self, cycle: int, row: np.ndarray | bytes, interface: int = 0) -> None:
        """One beat of a packet_layout(64) stream; the frame is written and stamped when its last beat moves, so stamps only rise."""
        row = bytes(row)
        nbytes = (len(row) - 1) * 8 // 9
        keep = int.from_bytes(row[nbytes:-1], "little")
        if row[-1] & 1:
            self._parts[interface] = []
        if interface not in self._parts:
            return  # the rest of a frame whose start was not seen
        self._parts[interface].append(row[: keep.bit_length()])
        if row[-1] & 2:
            self.frame(cycle, b"".join(self._parts.pop(interface)), interface)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
