"""Capture files: read back by scapy, nanoseconds kept, several links, frames from flits."""
from __future__ import annotations

import numpy as np
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader

from golden.net import pcap


def read(path):
    """(interface, nanoseconds, bytes) of each packet."""
    out = []
    with RawPcapNgReader(str(path)) as r:
        for data, meta in r:
            assert meta.linktype == pcap.LINKTYPE_ETHERNET
            out.append((meta.ifname, ((meta.tshigh << 32) + meta.tslow), meta.tsresol, data))
    return out


def flit(data: bytes, first: bool, last: bool) -> np.ndarray:
    keep = ((1 << len(data)) - 1).to_bytes(8, "little")
    return np.frombuffer(data.ljust(64, b"\xee") + keep + bytes([first | last << 1]), np.uint8)


def test_frames(tmp_path):
    path = tmp_path / "a.pcapng"
    frames = [bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / (b"x" * n)) for n in (0, 1, 2, 3, 4, 4182)]
    with pcap.Writer(path, cycle_ns=0.5, interfaces=("a", "b")) as w:
        for i, f in enumerate(frames):
            w.frame(3 + i, f, interface=i % 2)
        w.frame(1 << 40, frames[0])
        assert w.frames == 7
    got = read(path)
    assert [g[3] for g in got] == [*frames, frames[0]]
    assert [g[0] for g in got] == [b"a", b"b"] * 3 + [b"a"]
    assert [g[1] for g in got] == [2, 2, 2, 3, 4, 4, 1 << 39]
    assert {g[2] for g in got} == {10**9}


def test_flits(tmp_path):
    path = tmp_path / "b.pcapng"
    with pcap.Writer(path, interfaces=("up", "down")) as w:
        w.flit(4, flit(b"rest", False, True))  # of a frame that began before the capture
        w.flit(5, flit(b"a" * 64, True, False))
        w.flit(6, flit(b"only" * 15, True, True), interface=1)
        w.flit(9, flit(b"bc", False, True))
        w.flit(10, flit(b"d" * 64, True, False))  # cut short by the next
        w.flit(11, flit(b"e" * 60, True, True))
    assert [(g[0], g[1], g[3]) for g in read(path)] == [
        (b"down", 6, b"only" * 15), (b"up", 9, b"a" * 64 + b"bc"), (b"up", 11, b"e" * 60),
    ]


def test_empty(tmp_path):
    path = tmp_path / "c.pcapng"
    pcap.Writer(path).close()
    assert path.stat().st_size > 28 and read(path) == []
