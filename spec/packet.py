"""RoCEv2 frame layout (InfiniBand Architecture Specification vol. 1 chapter 9 and annexes A16, A17; RFC 791; RFC 768).

Header fields are in wire order: most significant bit first, big-endian. A frame on the link is Ethernet header to
iCRC; FCS, preamble and inter-packet gap belong to the MAC below the link and are counted as `WIRE_OVERHEAD` bytes.
"""
from __future__ import annotations

from enum import IntEnum

ETH_BYTES, IP_BYTES, UDP_BYTES, BTH_BYTES = 14, 20, 8, 12
RETH_BYTES, AETH_BYTES, IMM_BYTES, ICRC_BYTES = 16, 4, 4, 4
WIRE_OVERHEAD = 24  # FCS 4, preamble and start delimiter 8, inter-packet gap 12
HEADER_BYTES = ETH_BYTES + IP_BYTES + UDP_BYTES + BTH_BYTES  # 54
FLIT_BYTES = 64

ETHERTYPE_IPV4 = 0x0800
UDP_PORT_ROCE = 4791
IP_PROTO_UDP = 17
MIN_FRAME = 60  # Ethernet's shortest frame without FCS; a shorter one is padded by the MAC
PSN_BITS = 24
FIRST_QP = 2  # queue pairs 0 and 1 are management's in the standard: no rule of hardware, but analysers read packets to them as such
MTUS = (256, 512, 1024, 2048, 4096)

ETH = (("dst", 48), ("src", 48), ("ethertype", 16))
IPV4 = (
    ("version", 4), ("ihl", 4), ("dscp", 6), ("ecn", 2), ("length", 16), ("ident", 16), ("flags", 3), ("frag", 13),
    ("ttl", 8), ("proto", 8), ("checksum", 16), ("src", 32), ("dst", 32),
)
UDP = (("sport", 16), ("dport", 16), ("length", 16), ("checksum", 16))
BTH = (
    ("opcode", 8), ("se", 1), ("m", 1), ("pad", 2), ("tver", 4), ("pkey", 16), ("fecn", 1), ("becn", 1), ("_resv6", 6),
    ("dest_qp", 24), ("ack_req", 1), ("_resv7", 7), ("psn", 24),
)
RETH = (("va", 64), ("rkey", 32), ("length", 32))
AETH = (("syndrome", 8), ("msn", 24))
IMM = (("imm", 32),)

# Fixed header values this NIC sends. Node i: MAC 02:00:00:00:00:<i+1>, IPv4 10.0.0.<i+1>.
MAC_BASE = 0x020000000001
IPV4_BASE = 0x0A000001
TTL = 64
PKEY = 0xFFFF
UDP_SPORT_BASE = 0xC000  # source port = base | low 14 bits of the destination QP: entropy for ECMP


class Opcode(IntEnum):
    """BTH opcode, reliable connection."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMM = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMM = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMM = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMM = 0x0B
    READ_REQUEST = 0x0C
    READ_RESPONSE_FIRST = 0x0D
    READ_RESPONSE_MIDDLE = 0x0E
    READ_RESPONSE_LAST = 0x0F
    READ_RESPONSE_ONLY = 0x10
    ACK = 0x11


HAS_RETH = frozenset({Opcode.WRITE_FIRST, Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM, Opcode.READ_REQUEST})
HAS_AETH = frozenset({Opcode.ACK, Opcode.READ_RESPONSE_FIRST, Opcode.READ_RESPONSE_LAST, Opcode.READ_RESPONSE_ONLY})
HAS_IMM = frozenset({Opcode.SEND_LAST_IMM, Opcode.SEND_ONLY_IMM, Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM})


READ_RESPONSES = frozenset({
    Opcode.READ_RESPONSE_FIRST, Opcode.READ_RESPONSE_MIDDLE, Opcode.READ_RESPONSE_LAST, Opcode.READ_RESPONSE_ONLY})


class Syndrome(IntEnum):
    """AETH syndrome: bits 6:5 the kind, 4:0 credit count, RNR timer code or NAK code."""

    ACK = 0x1F  # acknowledged, credit field invalid (no end-to-end credits)
    RNR_NAK = 0x20  # | timer code
    NAK_PSN = 0x60
    NAK_INVALID = 0x61
    NAK_ACCESS = 0x62
    NAK_OPERATIONAL = 0x63


# Timer field of an RNR NAK, by code: what the sender waits, in units of 0.01 ms (IBA vol. 1 table 45).
RNR_UNITS = (65536, 1, 2, 3, *(base << shift for shift in range(14) for base in (4, 6)))


class DropReason(IntEnum):
    """Why the receiver dropped a frame; the lowest number that applies is given."""

    NONE = 0
    FRAMING = 1  # flits: first, last or keep out of place (a truncated frame)
    ETHERTYPE = 2
    ADDRESS = 3  # destination MAC or IPv4 is not this node's, or the source is no node's
    IP = 4  # version, header length, protocol, or a fragment
    IP_CHECKSUM = 5
    UDP = 6  # port, length, or a checksum (RoCEv2 over IPv4 sends 0)
    LENGTH = 7  # frame, IPv4 and headers by opcode disagree, or not a multiple of 4
    BTH = 8  # transport version or partition key
    OVERSIZE = 9  # payload above the MTU
    ICRC = 10


def header_bytes(opcode: int) -> int:
    """Bytes from the Ethernet header to the payload."""
    return (
        HEADER_BYTES
        + (RETH_BYTES if opcode in HAS_RETH else 0)
        + (AETH_BYTES if opcode in HAS_AETH else 0)
        + (IMM_BYTES if opcode in HAS_IMM else 0)
    )


def frame_bytes(opcode: int, payload: int) -> int:
    """Bytes of the frame on the link (payload padded to a multiple of 4, iCRC included)."""
    return header_bytes(opcode) + payload + (-payload % 4) + ICRC_BYTES


def wire_bytes(opcode: int, payload: int) -> int:
    """Bytes of line time the frame takes: the frame, at least Ethernet's 60 without FCS, and `WIRE_OVERHEAD`."""
    return max(frame_bytes(opcode, payload), MIN_FRAME) + WIRE_OVERHEAD


def segment(length: int, mtu: int) -> list[int]:
    """Payload bytes of each packet of a message; a zero-length message is one empty packet."""
    full, rest = divmod(length, mtu)
    return [mtu] * full + ([rest] if rest or not full else [])
