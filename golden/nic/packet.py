"""Golden twin of the packet layer: RoCEv2 frames from TX_META and payload, and back to RX_META and payload.

A frame is what the link carries: Ethernet header to iCRC. Sent headers: IPv4 without options, DSCP and ECN 0, ident
0, DF set, TTL 64, header checksum right; UDP checksum 0, source port ``UDP_SPORT_BASE`` | low 14 bits of the
destination QP; BTH M = 1, transport version 0, P_Key 0xFFFF; payload padded with zeros to a multiple of 4.

Received frames are refused with a `spec.packet.DropReason`, the lowest that applies; header fields that a short
frame lacks read as 0. The destination is checked when the receiving `node` is named, the payload's size when `mtu`
is. A source is a node's when its IPv4 address is 10.0.0.1 and up, 2^16 of them. Bytes after the IPv4 total length, up to
Ethernet's shortest frame of 60, are padding and are ignored. MAC source, TTL, DSCP, ECN, ident, DF, UDP source port and the BTH's FECN,
BECN, M and reserved bits are not judged. An unknown opcode is not refused here: it has no extended header.

The iCRC (annex A17) is the Ethernet CRC-32 over 8 bytes of 0xFF and the frame from the IPv4 header to the padded
payload, with type of service, TTL, IPv4 checksum, UDP checksum and the BTH byte of FECN, BECN and reserved bits all
ones; sent least significant byte first.
"""
from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from spec import packet as P
from spec.interfaces import RX_META, TX_META
from spec.packet import DropReason

_TX_FIELDS = frozenset(f.name for f in TX_META.fields if not f.name.startswith("_"))
_RX_FIELDS = tuple(f.name for f in RX_META.fields if not f.name.startswith("_"))
_TX_WIDTHS = TX_META.widths

_IP = P.ETH_BYTES
_UDP = _IP + P.IP_BYTES
_BTH = _UDP + P.UDP_BYTES
_MASKED = (_IP + 1, _IP + 8, _IP + 10, _IP + 11, _UDP + 6, _UDP + 7, _BTH + 4)
_IP_FLAG_DF, _IP_FLAG_MF = 2, 1


class PacketError(ValueError):
    """A received frame that must be dropped; `reason` says why."""

    def __init__(self, reason: DropReason, detail: str = ""):
        super().__init__(reason.name + (f": {detail}" if detail else ""))
        self.reason = reason


def _table() -> tuple[int, ...]:
    out = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0xEDB88320 if byte & 1 else 0)
        out.append(byte)
    return tuple(out)


CRC_TABLE = _table()


def crc32(data: bytes, state: int = 0xFFFFFFFF) -> int:
    """CRC-32 register after `data`, byte by byte from the table (reflected 0x04C11DB7); the CRC is its complement."""
    for byte in data:
        state = state >> 8 ^ CRC_TABLE[(state ^ byte) & 0xFF]
    return state


def icrc(frame_without_icrc: bytes) -> int:
    """iCRC of a frame given from its Ethernet header to its padded payload."""
    masked = bytearray(frame_without_icrc)
    for at in _MASKED:
        masked[at] = 0xFF
    return zlib.crc32(memoryview(masked)[_IP:], zlib.crc32(b"\xff" * 8))


def ip_checksum(header: bytes) -> int:
    """RFC 1071 sum of a header whose checksum field is 0 (of a whole right header: 0)."""
    total = sum(int.from_bytes(header[i : i + 2], "big") for i in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def pack_header(layout: Sequence[tuple[str, int]], **values: int) -> bytes:
    """Bytes of a header of `spec.packet`, most significant bit first; fields not named are 0."""
    word = bits = 0
    for name, width in layout:
        value = int(values.pop(name, 0))
        if not 0 <= value < 1 << width:
            raise ValueError(f"header field {name} = {value} does not fit in {width} bits")
        word, bits = word << width | value, bits + width
    if values:
        raise KeyError(f"no header field {', '.join(values)}")
    return word.to_bytes(bits // 8, "big")


def unpack_header(layout: Sequence[tuple[str, int]], data: bytes) -> dict[str, int]:
    """Field values of a header of `spec.packet`."""
    word, at = int.from_bytes(data, "big"), 8 * len(data)
    out = {}
    for name, width in layout:
        at -= width
        out[name] = word >> at & ((1 << width) - 1)
    return out


def mac_of(node: int) -> int:
    return P.MAC_BASE + node


def ipv4_of(node: int) -> int:
    return P.IPV4_BASE + node


def build(meta: Mapping[str, int], payload: bytes, src_node: int) -> bytes:
    """Frame of one packet. `meta` has TX_META names; fields not named are 0, `length` defaults to the payload's.

    Raises:
        KeyError: a name TX_META does not have. ValueError: a value that does not fit, or `length` that is not the
        payload's.
    """
    unknown = sorted(set(meta) - _TX_FIELDS)
    if unknown:
        raise KeyError(f"TX_META has no field {', '.join(unknown)}")
    payload = bytes(payload)
    if meta.get("length", len(payload)) != len(payload):
        raise ValueError(f"meta.length = {meta['length']} but the payload has {len(payload)} bytes")
    get = {name: int(meta.get(name, 0)) for name in _TX_FIELDS}
    for name, value in get.items():
        if not 0 <= value < 1 << _TX_WIDTHS[name]:
            raise ValueError(f"TX_META.{name} = {value} does not fit in {_TX_WIDTHS[name]} bits")
    opcode, dest_qp = get["opcode"], get["dest_qp"]
    pad = -len(payload) % 4
    udp_length = P.frame_bytes(opcode, len(payload)) - P.ETH_BYTES - P.IP_BYTES

    eth = pack_header(P.ETH, dst=mac_of(get["dest_node"]), src=mac_of(src_node), ethertype=P.ETHERTYPE_IPV4)
    fields = {
        "version": 4, "ihl": 5, "length": udp_length + P.IP_BYTES, "flags": _IP_FLAG_DF, "ttl": P.TTL,
        "proto": P.IP_PROTO_UDP, "src": ipv4_of(src_node), "dst": ipv4_of(get["dest_node"]),
    }
    ip = pack_header(P.IPV4, **fields, checksum=ip_checksum(pack_header(P.IPV4, **fields)))
    udp = pack_header(P.UDP, sport=P.UDP_SPORT_BASE | dest_qp & 0x3FFF, dport=P.UDP_PORT_ROCE, length=udp_length)
    bth = pack_header(
        P.BTH, opcode=opcode, se=get["se"], m=1, pad=pad, pkey=P.PKEY, dest_qp=dest_qp, ack_req=get["ack_req"],
        psn=get["psn"],
    )
    extended = b""
    if opcode in P.HAS_RETH:
        extended += pack_header(P.RETH, va=get["va"], rkey=get["rkey"], length=get["dma_len"])
    if opcode in P.HAS_AETH:
        extended += pack_header(P.AETH, syndrome=get["syndrome"], msn=get["msn"])
    if opcode in P.HAS_IMM:
        extended += pack_header(P.IMM, imm=get["imm"])
    frame = eth + ip + udp + bth + extended + payload + bytes(pad)
    return frame + icrc(frame).to_bytes(4, "little")


def _judge(frame: bytes, node: int | None, mtu: int | None) -> Iterator[tuple[DropReason, bool, str]]:
    """(reason, whether it applies, what was found), by rising reason."""
    head = frame[: P.HEADER_BYTES].ljust(P.HEADER_BYTES, b"\0")
    eth, ip = unpack_header(P.ETH, head[:_IP]), unpack_header(P.IPV4, head[_IP:_UDP])
    udp, bth = unpack_header(P.UDP, head[_UDP:_BTH]), unpack_header(P.BTH, head[_BTH:])
    yield DropReason.ETHERTYPE, eth["ethertype"] != P.ETHERTYPE_IPV4, f"{eth['ethertype']:#06x}"
    stray = node is not None and (eth["dst"], ip["dst"]) != (mac_of(node), ipv4_of(node))
    yield DropReason.ADDRESS, stray, f"to {eth['dst']:#x}, {ip['dst']:#x}"
    yield DropReason.ADDRESS, not 0 <= ip["src"] - P.IPV4_BASE < 1 << 16, f"from {ip['src']:#x}"
    yield DropReason.IP, (ip["version"], ip["ihl"]) != (4, 5), f"version {ip['version']}, header length {ip['ihl']}"
    yield DropReason.IP, ip["proto"] != P.IP_PROTO_UDP, f"protocol {ip['proto']}"
    yield DropReason.IP, bool(ip["flags"] & _IP_FLAG_MF or ip["frag"]), "fragment"
    yield DropReason.IP_CHECKSUM, ip_checksum(head[_IP:_UDP]) != 0, f"{ip['checksum']:#x}"
    yield DropReason.UDP, udp["dport"] != P.UDP_PORT_ROCE, f"port {udp['dport']}"
    yield DropReason.UDP, udp["length"] != ip["length"] - P.IP_BYTES, f"length {udp['length']}, IPv4's {ip['length']}"
    yield DropReason.UDP, udp["checksum"] != 0, f"checksum {udp['checksum']:#x}"
    payload = _payload_bytes(ip["length"], bth)
    end = P.ETH_BYTES + ip["length"]
    wrong = not end <= len(frame) <= max(end, P.MIN_FRAME)
    yield DropReason.LENGTH, wrong, f"{len(frame)} bytes, IPv4 has {ip['length']}"
    ragged = ip["length"] % 4 != 0 or payload < 0
    yield DropReason.LENGTH, ragged, f"IPv4's {ip['length']} for opcode {bth['opcode']:#x}"
    yield DropReason.BTH, bth["tver"] != 0 or bth["pkey"] != P.PKEY, f"version {bth['tver']}, key {bth['pkey']:#x}"
    yield DropReason.OVERSIZE, mtu is not None and payload > mtu, f"{payload} bytes"
    body, crc = frame[: end - P.ICRC_BYTES], frame[end - P.ICRC_BYTES : end]
    yield DropReason.ICRC, icrc(body) != int.from_bytes(crc, "little"), crc.hex()


def _payload_bytes(ip_length: int, bth: Mapping[str, int]) -> int:
    return P.ETH_BYTES + ip_length - P.header_bytes(bth["opcode"]) - P.ICRC_BYTES - bth["pad"]


def parse(frame: bytes, *, node: int | None = None, mtu: int | None = None) -> tuple[dict[str, int], bytes]:
    """RX_META values and payload (padding removed) of a received frame; fields its opcode does not carry are 0.

    Raises:
        PacketError: the frame must be dropped.
    """
    frame = bytes(frame)
    for reason, applies, found in _judge(frame, node, mtu):
        if applies:
            raise PacketError(reason, found)
    ip, bth = unpack_header(P.IPV4, frame[_IP:_UDP]), unpack_header(P.BTH, frame[_BTH : P.HEADER_BYTES])
    at, body = P.HEADER_BYTES, frame[: P.ETH_BYTES + ip["length"] - P.ICRC_BYTES]
    opcode = bth["opcode"]
    length = _payload_bytes(ip["length"], bth)
    meta = dict.fromkeys(_RX_FIELDS, 0)
    meta.update(
        opcode=opcode, ack_req=bth["ack_req"], se=bth["se"], src_node=ip["src"] - P.IPV4_BASE,
        dest_qp=bth["dest_qp"], psn=bth["psn"], length=length,
    )
    if opcode in P.HAS_RETH:
        reth = unpack_header(P.RETH, body[at : at + P.RETH_BYTES])
        meta.update(va=reth["va"], rkey=reth["rkey"], dma_len=reth["length"])
        at += P.RETH_BYTES
    if opcode in P.HAS_AETH:
        meta.update(unpack_header(P.AETH, body[at : at + P.AETH_BYTES]))
        at += P.AETH_BYTES
    if opcode in P.HAS_IMM:
        meta.update(unpack_header(P.IMM, body[at : at + P.IMM_BYTES]))
        at += P.IMM_BYTES
    return meta, body[at : at + length]


def flits(frame: bytes) -> tuple[np.ndarray, list[int]]:
    """Beats of a frame on the link: data ``(n, 64)`` uint8 (bytes past the end 0) and `keep`, one bit a byte."""
    count = -(-len(frame) // P.FLIT_BYTES)
    data = np.zeros((count, P.FLIT_BYTES), np.uint8)
    data.reshape(-1)[: len(frame)] = np.frombuffer(bytes(frame), np.uint8)
    keep = [(1 << P.FLIT_BYTES) - 1] * count
    if count:
        keep[-1] = (1 << len(frame) - P.FLIT_BYTES * (count - 1)) - 1
    return data, keep


def unflit(data: np.ndarray, keep: Sequence[int]) -> bytes:
    """The frame of its beats.

    Raises:
        ValueError: valid bytes not contiguous from byte 0, none valid, or a beat before the last not full.
    """
    data = np.asarray(data, np.uint8)
    if data.shape != (len(keep), P.FLIT_BYTES):
        raise ValueError(f"data has shape {data.shape}, expected ({len(keep)}, {P.FLIT_BYTES})")
    total = 0
    for i, k in enumerate(int(k) for k in keep):
        n = k.bit_length()
        if n == 0 or k != (1 << n) - 1:
            raise ValueError(f"beat {i}: keep {k:#x} is not contiguous from byte 0")
        if n != P.FLIT_BYTES and i != len(keep) - 1:
            raise ValueError(f"beat {i} of {len(keep)} has {n} valid bytes: only the last may be short")
        total += n
    return data.tobytes()[:total]
