"""A hostile peer against the golden transport: nothing outside a region is written, every request completes once, other queue pairs keep working.

The same packets meet the hardware in tb/nic/test_hostile.py.
"""
from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scapy.all import raw
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from golden.nic.packet import PacketError, build, icrc, parse
from golden.nic.transport import Completion, Request
from spec.interfaces import RX_META, TX_META
from spec.packet import ICRC_BYTES, DropReason, Opcode, Syndrome
from spec.params import NicParams
from spec.wqe import Op, Status
from tb.nic.hostile import KEY, KINDS, ME, PEER, SIZE, Attack, Victim, inside

PARAMS = NicParams(mtu=256, window=8, ack_every=4, sq_depth=8, rq_depth=8, retries=2, rnr_retries=2)
GOOD = 12  # the queue pair that no harm is meant to
QPS = tuple(range(13))


def setup(seed: int) -> tuple[Victim, Attack, np.ndarray]:
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, SIZE, np.uint8)
    v = Victim(PARAMS, QPS, image)
    for qp in QPS:
        v.open(qp, int(rng.integers(1 << 24)), int(rng.integers(1 << 24)))
    return v, Attack(v, rng), image


def good_round(v: Victim, k: int) -> None:
    """A SEND received and a WRITE sent and acknowledged on the queue pair left alone."""
    data = k.to_bytes(8, "little") * 5
    v.post(GOOD, Request(tag=k, op=Op.RECV, length=64, laddr=0x1000, lkey=KEY))
    v.post(GOOD, Request(tag=k, op=Op.WRITE, length=40, laddr=0x1000, lkey=KEY))
    end = v.ends[GOOD]
    meta = dict(opcode=int(Opcode.SEND_ONLY), psn=end.responder.psn, ack_req=1, src_node=PEER, dest_qp=GOOD, length=40, va=0, rkey=0, dma_len=0, imm=0)
    assert v.give(meta, data)
    ack, packet = v.answers(GOOD)
    assert (ack[0]["syndrome"], packet[0]["opcode"], packet[1]) == (Syndrome.ACK, Opcode.WRITE_ONLY, data)
    assert v.give({**meta, "opcode": int(Opcode.ACK), "psn": packet[0]["psn"], "syndrome": int(Syndrome.ACK)}, b"")
    assert v.completions(GOOD) == (
        [Completion(tag=k, status=Status.SUCCESS, byte_len=40)], [Completion(tag=k, status=Status.SUCCESS, byte_len=40)])


def attack(packets: int, seed: int) -> tuple[Counter, Counter]:
    """(what was done to packets, statuses of requests)."""
    v, a, image = setup(seed)
    rng = a.rng
    done: Counter = Counter()
    kinds: Counter = Counter()
    owed = dict.fromkeys(QPS, (0, 0))
    for k in range(packets):
        qp = int(rng.integers(GOOD))
        for kind in (Op.RECV, Op.SEND, Op.WRITE, Op.READ):
            side = kind != Op.RECV
            if rng.random() < 0.4 and owed[qp][side] < PARAMS.rq_depth:
                v.post(qp, a.request(kind))
                owed[qp] = (owed[qp][0] + (not side), owed[qp][1] + side)
        v.answers(qp)
        what, packet = a.packet(qp)
        kinds[what] += 1
        v.give(*packet)
        v.answers(qp)
        if rng.random() < 0.2:
            v.ends[qp].requester.rnr_expired()
            v.ends[qp].timeout()
        v.answers(qp)
        sent, got = v.completions(qp)
        done.update(c.status for c in (*sent, *got))
        owed[qp] = (owed[qp][0] - len(got), owed[qp][1] - len(sent))
        assert min(owed[qp]) >= 0
        if v.failed(qp):
            assert owed[qp] == (0, 0), f"requests without completion: {owed[qp]}"
            if rng.random() < 0.5:
                v.open(qp, int(rng.integers(1 << 24)), int(rng.integers(1 << 24)))
        if k % 16 == 0:
            good_round(v, k & 0xFFFF)
    assert np.array_equal(v.memory.data[~inside()], image[~inside()]), "bytes outside every region were written"
    return kinds, done


def test_a_thousand_packets():
    kinds, done = attack(1000, 1)
    assert set(kinds) == set(KINDS)
    assert set(done) >= {Status.SUCCESS, Status.WR_FLUSH_ERR, Status.LOC_LEN_ERR, Status.LOC_PROT_ERR, Status.REM_INV_REQ_ERR}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_million_packets(seed):
    _, done = attack(100_000, 100 + seed)
    assert set(done) >= set(Status) - {Status.MEM_ERR, Status.ALIGN_ERR, Status.WAIT_TIMEOUT}


def frames(rng: np.random.Generator, count: int):
    """(frame, reason it must be dropped for, or None when anything but an exception is right): scapy's frames, damaged."""
    for _ in range(count):
        n = int(rng.integers(0, 257))
        meta = {name: int(rng.integers(1 << min(width, 63))) for name, width in TX_META.widths.items() if not name.startswith("_")}
        meta |= {"opcode": int(rng.choice([*Opcode])), "dest_node": ME, "length": n}
        whole = build(meta, rng.bytes(n), PEER)
        p = Ether(whole)
        kind = int(rng.integers(9))
        if kind == 0:
            yield whole[: int(rng.integers(len(whole)))], DropReason.LENGTH
        elif kind == 1:
            yield whole + rng.bytes(int(rng.integers(61, 300))), DropReason.LENGTH
        elif kind == 2:
            at = int(rng.integers(54, len(whole)))
            yield whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :], None
        elif kind == 3:
            yield rng.bytes(int(rng.integers(0, 400))), DropReason.ETHERTYPE
        elif kind == 4:
            p[UDP].dport = 4790
            p[UDP].chksum = 0
            yield raw(p), DropReason.UDP
        elif kind == 5:
            p[IP].chksum ^= 1 << int(rng.integers(16))
            yield raw(p), DropReason.IP_CHECKSUM
        elif kind == 6:  # whatever opcode, its headers and payload as they fall, checksum right
            p[BTH].opcode = int(rng.integers(256))
            yield sealed(raw(p)), None
        elif kind == 7:
            p[BTH].pkey = int(rng.integers(0xFFFF))
            yield sealed(raw(p)), DropReason.BTH
        else:
            yield whole[:-ICRC_BYTES] + bytes(x ^ 0x40 for x in whole[-ICRC_BYTES:]), DropReason.ICRC


def sealed(frame: bytes) -> bytes:
    return frame[:-ICRC_BYTES] + icrc(frame[:-ICRC_BYTES]).to_bytes(ICRC_BYTES, "little")


def frame_attack(count: int, seed: int) -> Counter:
    v, a, image = setup(seed)
    reasons: Counter = Counter()
    for k, (frame, want) in enumerate(frames(a.rng, count)):
        try:
            meta, payload = parse(frame, node=ME, mtu=PARAMS.mtu)
        except PacketError as e:
            # the lowest reason is told: cut inside the headers, or noise that happens to be worse
            assert want is None or e.reason == want or want in (DropReason.LENGTH, DropReason.ETHERTYPE), (e, want)
            reasons[e.reason] += 1
            continue
        assert want is None or want == DropReason.LENGTH and len(frame) >= 60, f"taken: {frame.hex()}"
        RX_META.pack(meta)
        v.give(meta, payload)
        for qp in QPS:
            v.answers(qp)
        reasons[DropReason.NONE] += 1
        if k % 16 == 0:
            good_round(v, k & 0xFFFF)
    assert np.array_equal(v.memory.data[~inside()], image[~inside()])
    return reasons


def test_damaged_frames():
    reasons = frame_attack(500, 3)
    assert set(reasons) >= {DropReason.NONE, DropReason.LENGTH, DropReason.ETHERTYPE, DropReason.UDP, DropReason.IP_CHECKSUM, DropReason.BTH, DropReason.ICRC}


@pytest.mark.long
def test_many_damaged_frames():
    frame_attack(100_000, 4)
