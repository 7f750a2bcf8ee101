"""Frames against scapy, the iCRC against zlib and scapy, and every reason to refuse a frame."""
from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from golden.nic import packet as G
from golden.nic.packet import PacketError
from spec import packet as P
from spec.packet import DropReason, Opcode

LENGTHS = [0, 1, 2, 3, 4, 5, 9, 10, 11, 63, 64, 65, 127, 128, 255, 256, 257, 1023, 1024, 2048, 4095, 4096]
META = {
    "ack_req": 1, "se": 1, "dest_node": 3, "dest_qp": 0xA5F00D, "psn": 0xFFFFFE,
    "syndrome": P.Syndrome.NAK_PSN, "msn": 0x123456, "va": 0x0123456789ABCDEF, "rkey": 0xDEADBEEF, "dma_len": 0x10203040, "imm": 0xCAFEF00D,
}


def payload_of(n: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed + n).integers(0, 256, n, np.uint8).tobytes()


def scapy_frame(opcode: int, payload: bytes, src: int) -> bytes:
    """The same packet put together by scapy's layers (iCRC and checksums computed by scapy)."""
    m, body = META, b""
    if opcode in P.HAS_RETH:
        body += m["va"].to_bytes(8, "big") + m["rkey"].to_bytes(4, "big") + m["dma_len"].to_bytes(4, "big")
    if opcode in P.HAS_AETH:
        body += bytes(AETH(syndrome=int(m["syndrome"]), msn=m["msn"]))
    if opcode in P.HAS_IMM:
        body += m["imm"].to_bytes(4, "big")
    pad = -len(payload) % 4
    p = (
        Ether(dst="02:00:00:00:00:04", src=f"02:00:00:00:00:{src + 1:02x}")
        / IP(src=f"10.0.0.{src + 1}", dst="10.0.0.4", id=0, flags="DF", ttl=64)
        / UDP(sport=0xC000 | m["dest_qp"] & 0x3FFF, dport=4791, chksum=0)
        / BTH(opcode=opcode, solicited=1, migreq=1, padcount=pad, dqpn=m["dest_qp"], ackreq=1, psn=m["psn"])
    )
    return bytes(p / Raw(body + payload + bytes(pad)))


@pytest.mark.parametrize("opcode", list(Opcode))
def test_frame_equals_scapy(opcode):
    for n in LENGTHS:
        payload = payload_of(n)
        frame = G.build({**META, "opcode": opcode}, payload, src_node=9)
        assert frame == scapy_frame(opcode, payload, 9), n
        assert len(frame) == P.frame_bytes(opcode, n)
        meta, back = G.parse(frame)
        assert back == payload
        want = {"opcode": opcode, "ack_req": 1, "se": 1, "src_node": 9, "length": n}
        want |= {"dest_qp": META["dest_qp"], "psn": META["psn"]}
        names = {"va", "rkey", "dma_len"} if opcode in P.HAS_RETH else set()
        names |= {"syndrome", "msn"} if opcode in P.HAS_AETH else set()
        names |= {"imm"} if opcode in P.HAS_IMM else set()
        for name in ("va", "rkey", "dma_len", "syndrome", "msn", "imm"):
            want[name] = META[name] if name in names else 0
        assert meta == want


def test_scapy_reads_our_frame():
    p = Ether(G.build({**META, "opcode": Opcode.ACK}, b"", 0))
    assert p[IP].src == "10.0.0.1" and p[IP].dst == "10.0.0.4" and p[IP].flags == "DF" and p[IP].ttl == 64
    assert p[UDP].dport == 4791 and p[UDP].chksum == 0
    assert p[BTH].psn == 0xFFFFFE and p[BTH].pkey == 0xFFFF and p[AETH].msn == 0x123456


def test_icrc_is_sent_least_significant_byte_first():
    frame = scapy_frame(Opcode.SEND_ONLY, payload_of(256), 0)
    assert G.icrc(frame[:-4]).to_bytes(4, "little") == frame[-4:]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.binary(max_size=300))
def test_table_crc_equals_zlib(data):
    assert G.crc32(data) ^ 0xFFFFFFFF == zlib.crc32(data)


@pytest.mark.parametrize("n", LENGTHS)
def test_icrc_equals_table_crc(n):
    frame = G.build({**META, "opcode": Opcode.SEND_ONLY}, payload_of(n), 0)[:-4]
    masked = bytearray(frame)
    for at in (15, 22, 24, 25, 40, 41, 46):  # ToS, TTL, IPv4 checksum, UDP checksum, FECN/BECN/reserved
        masked[at] = 0xFF
    assert G.icrc(frame) == G.crc32(b"\xff" * 8 + bytes(masked[14:])) ^ 0xFFFFFFFF


def test_ethernet_padding_is_ignored():
    """Up to Ethernet's shortest frame; a longer frame must end where its IPv4 length says."""
    frame = G.build({**META, "opcode": Opcode.SEND_ONLY}, b"", 2)
    assert len(frame) == 58
    assert G.parse(frame + b"\xa5\x5a") == G.parse(frame)
    for n, extra in ((0, 3), (1, 1), (5, 70), (200, 1)):
        frame = G.build({**META, "opcode": Opcode.SEND_ONLY}, payload_of(n), 2)
        with pytest.raises(G.PacketError) as caught:
            G.parse(frame + bytes(extra))
        assert caught.value.reason == DropReason.LENGTH


def test_unknown_opcode_reaches_the_receiver():
    meta, payload = G.parse(G.build({**META, "opcode": 0xC3}, b"abc", 1))
    assert meta["opcode"] == 0xC3 and payload == b"abc"


def seal(frame: bytearray) -> bytes:
    """Make IPv4 checksum and iCRC right again after an edit."""
    frame[24:26] = bytes(2)
    frame[24:26] = G.ip_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    total = 14 + int.from_bytes(frame[16:18], "big")
    frame[total - 4 : total] = G.icrc(bytes(frame[: total - 4])).to_bytes(4, "little")
    return bytes(frame)


def reason_of(frame: bytes, **kw: int) -> DropReason:
    with pytest.raises(PacketError) as e:
        G.parse(frame, **kw)
    assert e.value.reason.name in str(e.value)
    return e.value.reason


def edited(opcode: int = Opcode.SEND_ONLY, payload: bytes = b"12345", sealed: bool = True, **at: int) -> bytes:
    frame = bytearray(G.build({**META, "opcode": opcode}, payload, 1))
    for k, v in at.items():
        frame[int(k[1:])] = v
    return seal(frame) if sealed else bytes(frame)


def test_each_reason():
    good = G.build({**META, "opcode": Opcode.SEND_ONLY}, b"12345", 1)
    assert G.parse(good, node=3, mtu=5)[1] == b"12345"
    assert reason_of(b"") is DropReason.ETHERTYPE
    assert reason_of(edited(_12=0x86)) is DropReason.ETHERTYPE
    assert reason_of(good, node=2) is DropReason.ADDRESS
    assert reason_of(edited(_0=3), node=3) is DropReason.ADDRESS
    assert reason_of(edited(_33=5), node=3) is DropReason.ADDRESS
    assert reason_of(edited(_26=11)) is reason_of(edited(_28=0, _29=0)) is DropReason.ADDRESS
    assert reason_of(edited(_14=0x46)) is reason_of(edited(_14=0x65)) is DropReason.IP
    assert reason_of(edited(_20=0x20)) is reason_of(edited(_21=1)) is DropReason.IP
    assert reason_of(edited(_23=6)) is DropReason.IP
    assert reason_of(edited(sealed=False, _24=good[24] ^ 1)) is DropReason.IP_CHECKSUM
    assert reason_of(edited(_36=0)) is DropReason.UDP
    assert reason_of(edited(_39=good[39] + 4)) is DropReason.UDP
    assert reason_of(edited(_41=1)) is DropReason.UDP
    assert reason_of(good[:57]) is reason_of(good[:-1]) is DropReason.LENGTH
    assert reason_of(edited(payload=b"", _42=Opcode.WRITE_ONLY)) is DropReason.LENGTH
    assert reason_of(edited(payload=b"", _43=0x70)) is DropReason.LENGTH
    assert reason_of(edited(_17=good[17] + 1, _39=good[39] + 1) + b"x") is DropReason.LENGTH
    assert reason_of(edited(_43=0x71)) is reason_of(edited(_44=0x7F)) is DropReason.BTH
    assert reason_of(good, mtu=4) is DropReason.OVERSIZE
    for bit in range(8):
        assert reason_of(good[:-1] + bytes([good[-1] ^ 1 << bit])) is DropReason.ICRC


def test_the_lowest_reason_is_given():
    """Damage from the iCRC upward: each earlier check hides the later ones."""
    frame = bytearray(G.build({**META, "opcode": Opcode.SEND_ONLY}, b"12345678", 1))
    for at, value, reason in (
        (-1, frame[-1] ^ 1, DropReason.ICRC), (None, 0, DropReason.OVERSIZE), (44, 0, DropReason.BTH),
        (42, Opcode.WRITE_ONLY, DropReason.LENGTH), (37, 0, DropReason.UDP),
        (24, frame[24] ^ 1, DropReason.IP_CHECKSUM), (23, 1, DropReason.IP), (5, 0, DropReason.ADDRESS),
        (12, 0, DropReason.ETHERTYPE),
    ):
        if at is not None:
            frame[at] = value
        assert reason_of(bytes(frame), node=3, mtu=7 if reason is not DropReason.ICRC else 4096) is reason


def test_fields_outside_the_icrc_may_change():
    """Type of service, TTL with its checksum, FECN and BECN: a switch's business."""
    frame = bytearray(G.build({**META, "opcode": Opcode.SEND_ONLY}, b"12345", 1))
    want, crc = G.parse(bytes(frame)), bytes(frame[-4:])
    frame[15], frame[22], frame[46] = 0x03, 9, 0xC0
    frame = seal(frame)
    assert frame[-4:] == crc and G.parse(frame) == want


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.sampled_from(list(Opcode)), st.binary(max_size=90), st.data())
def test_any_flipped_bit_is_caught_or_harmless(opcode, payload, data):
    frame = G.build({**META, "opcode": opcode}, payload, 4)
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    bad = bytearray(frame)
    bad[bit // 8] ^= 1 << bit % 8
    try:
        got = G.parse(bytes(bad))
    except PacketError:
        return
    harmless = set(range(12)) | {46}  # MAC addresses, FECN/BECN
    assert bit // 8 in harmless and got == G.parse(frame)


def test_build_refuses():
    with pytest.raises(KeyError, match="no field colour"):
        G.build({"opcode": 4, "colour": 1}, b"", 0)
    with pytest.raises(ValueError, match="psn = 16777216 does not fit in 24 bits"):
        G.build({"opcode": 4, "psn": 1 << 24}, b"", 0)
    with pytest.raises(ValueError, match="length = 3 but the payload has 2"):
        G.build({"opcode": 4, "length": 3}, b"ab", 0)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 4150])
def test_flits_round_trip(n):
    frame = payload_of(n)
    data, keep = G.flits(frame)
    assert data.shape == (-(-n // 64), 64) and G.unflit(data, keep) == frame
    assert all(k == (1 << 64) - 1 for k in keep[:-1]) and keep[-1].bit_count() == (n - 1) % 64 + 1


def test_unflit_refuses():
    data, keep = G.flits(bytes(130))
    for bad in ([keep[0], keep[0], 5], [1, keep[1], keep[2]], [keep[0], keep[1], 0]):
        with pytest.raises(ValueError, match="beat"):
            G.unflit(data, bad)
