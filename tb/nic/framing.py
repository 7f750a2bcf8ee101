"""What the framer and deframer benches share: random packets, frames by scapy, beats of the 64-byte streams."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw, raw

from spec import packet
from spec.interfaces import RX_META, TX_META
from spec.packet import FLIT_BYTES, HAS_AETH, HAS_IMM, HAS_RETH, Opcode

BEAT_BYTES = FLIT_BYTES + 9  # data, keep, first and last of a packed packet_layout(64)
OPCODES = [int(op) for op in Opcode] + [0x12, 0x3F, 0xFF]  # with some that nothing defines
LENGTHS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 49, 50, 51, 52, 53, 54, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 119, 128, 255, 256, 257]
NODES = (0, 1, 2, 253, 254, 255, 256, 0xFFFE, 0xFFFF)


def random_meta(rng: np.random.Generator, opcode: int, length: int, *, dest: int | None = None) -> dict[str, int]:
    """TX_META values; every field random, whether or not the opcode carries it."""
    bits = {f.name: f.width for f in TX_META.fields if not f.name.startswith("_")}
    meta = {n: int.from_bytes(rng.bytes(8), "little") & (1 << w) - 1 for n, w in bits.items()}
    node = NODES[rng.integers(len(NODES))] if rng.random() < 0.5 else int(rng.integers(1 << 16))
    return {**meta, "opcode": opcode, "length": length, "dest_node": node if dest is None else dest}


def received(meta: dict[str, int], src_node: int) -> dict[str, int]:
    """RX_META values that a packet sent with `meta` must give."""
    out = {f.name: meta.get(f.name, 0) for f in RX_META.fields if not f.name.startswith("_")}
    for fields, opcodes in ((("va", "rkey", "dma_len"), HAS_RETH), (("syndrome", "msn"), HAS_AETH), (("imm",), HAS_IMM)):
        if meta["opcode"] not in opcodes:
            out |= dict.fromkeys(fields, 0)
    return {**out, "src_node": src_node}


def _mac(node: int) -> str:
    return ":".join(f"{b:02x}" for b in (packet.MAC_BASE + node).to_bytes(6, "big"))


def _ip(node: int) -> str:
    return ".".join(str(b) for b in (packet.IPV4_BASE + node).to_bytes(4, "big"))


def scapy_frame(meta: dict[str, int], payload: bytes, src_node: int, **change: dict) -> bytes:
    """The frame as scapy builds it: checksums, lengths and iCRC are scapy's.

    Args:
        change: `eth`, `ip`, `udp`, `bth`: fields to set otherwise, in scapy's names.
    """
    op = meta["opcode"]
    ext = b""
    if op in HAS_RETH:
        ext += b"".join(meta[n].to_bytes(size, "big") for n, size in (("va", 8), ("rkey", 4), ("dma_len", 4)))
    if op in HAS_AETH:
        ext += bytes([meta["syndrome"]]) + meta["msn"].to_bytes(3, "big")
    if op in HAS_IMM:
        ext += meta["imm"].to_bytes(4, "big")
    pad = -len(payload) % 4
    dst = meta["dest_node"]
    eth = {"src": _mac(src_node), "dst": _mac(dst), "type": 0x0800}
    ip = {"src": _ip(src_node), "dst": _ip(dst), "id": 0, "flags": "DF", "ttl": 64, "proto": 17}
    udp = {"sport": 0xC000 | meta["dest_qp"] & 0x3FFF, "dport": 4791, "chksum": 0}
    bth = {"opcode": op, "solicited": meta["se"], "migreq": 1, "padcount": pad, "dqpn": meta["dest_qp"],
           "ackreq": meta["ack_req"], "psn": meta["psn"]}
    for part, values in (("eth", eth), ("ip", ip), ("udp", udp), ("bth", bth)):
        values |= change.get(part, {})
    return raw(Ether(**eth) / IP(**ip) / UDP(**udp) / BTH(**bth) / Raw(ext + payload + bytes(pad)))


def beats(data: bytes, rng: np.random.Generator | None = None) -> np.ndarray:
    """(n, 73) rows of packet_layout(64); with `rng`, bytes beyond the end are random instead of 0."""
    n = -(-len(data) // FLIT_BYTES)
    rows = np.zeros((n, BEAT_BYTES), np.uint8)
    if not n:
        return rows
    padded = np.zeros(n * FLIT_BYTES, np.uint8) if rng is None else rng.integers(0, 256, n * FLIT_BYTES, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows[:, :FLIT_BYTES] = padded.reshape(n, FLIT_BYTES)
    rows[:, FLIT_BYTES:FLIT_BYTES + 8] = 0xFF
    last = len(data) - (n - 1) * FLIT_BYTES
    rows[-1, FLIT_BYTES:FLIT_BYTES + 8] = np.frombuffer(((1 << last) - 1).to_bytes(8, "little"), np.uint8)
    rows[0, -1] |= 1
    rows[-1, -1] |= 2
    return rows


def join(parts: Iterable[np.ndarray]) -> np.ndarray:
    parts = list(parts)
    return np.concatenate(parts) if parts else np.zeros((0, BEAT_BYTES), np.uint8)


def packets(rows: np.ndarray) -> list[bytes]:
    """Packets of a stream of beats; refuses beats that break the layout's rules."""
    out: list[bytes] = []
    part: list[bytes] = []
    for row in rows:
        keep = int.from_bytes(row[FLIT_BYTES:FLIT_BYTES + 8].tobytes(), "little")
        n = keep.bit_length()
        first, last = row[-1] & 1, row[-1] >> 1 & 1
        assert keep == (1 << n) - 1 and n, f"keep {keep:#x} is not contiguous from byte 0"
        assert last or n == FLIT_BYTES, f"a beat of {n} bytes is not the last"
        assert bool(first) == (not part), "first is set exactly on a packet's first beat"
        part.append(row[:n].tobytes())
        if last:
            out.append(b"".join(part))
            part = []
    assert not part, "the last packet has no last beat"
    return out


def flits(frames: Sequence[bytes]) -> int:
    """Cycles that frames take at full rate."""
    return sum(-(-len(f) // FLIT_BYTES) for f in frames)


def meta_words(metas: Iterable[dict[str, int]]) -> list[int]:
    return [TX_META.pack(m) for m in metas]


def all_cases() -> list[tuple[int, int]]:
    """Every opcode × payload length, edges of a flit included."""
    return [(op, n) for op in OPCODES for n in LENGTHS]


def same(got: Sequence, expected: Sequence, what: str) -> None:
    """Equal lists, or an error that shows the first difference and no more."""
    for i, (g, e) in enumerate(zip(got, expected, strict=False)):
        if g != e:
            show = [x.hex() if isinstance(x, bytes) else str(x) for x in (g, e)]
            raise AssertionError(f"{what} {i} differs:\n  got      {show[0]}\n  expected {show[1]}")
    assert len(got) == len(expected), f"{len(got)} {what}s, expected {len(expected)}"
