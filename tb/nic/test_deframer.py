"""Deframer: what gets through and what does not, with the golden model and scapy as judges."""
from __future__ import annotations

import struct
import zlib

import cocotb
import numpy as np

from golden.nic import packet as golden
from spec import packet
from spec.interfaces import RX_META
from spec.packet import DropReason, Opcode
from tb.lib.bench import Bench
from tb.nic import framing

NODE = 300
UNPROTECTED = {*range(6, 12), 46}  # source MAC, and BTH's FECN, BECN and reserved bits: rewritten on the way


def verdict(b: Bench, frame: bytes) -> tuple[dict, bytes] | DropReason:
    """What becomes of a frame: the golden model's verdict."""
    try:
        return golden.parse(frame, node=NODE, mtu=b.config.node.nic.mtu)
    except golden.PacketError as e:
        return DropReason(e.reason)


async def offer(b: Bench, rows: np.ndarray, results: list, deadline: int) -> int:
    """Run beats through; `results` are the verdicts of their frames in order. Returns cycles."""
    good = [r for r in results if not isinstance(r, DropReason)]
    drops = [r for r in results if isinstance(r, DropReason)]
    b.pin("node").value = NODE
    b.source("link").load(rows)
    b.sink("meta").expect(len(good))
    b.sink("data").expect(framing.flits([p for _, p in good]))
    b.sink("drops").expect(len(drops))
    b.sink("drops").backpressure = 0.0
    cycles = await b.run(deadline)
    framing.same([RX_META.unpack(w) for w in b.sink("meta").words()], [m for m, _ in good], "description")
    framing.same(framing.packets(b.sink("data").array()), [p for _, p in good if p], "payload")
    framing.same([DropReason(w).name for w in b.sink("drops").words()], [d.name for d in drops], "drop")
    for d in drops:
        b.cover(f"drop-{d.name}")
    return cycles


async def offer_frames(b: Bench, frames: list[bytes], deadline: int = 30_000) -> int:
    return await offer(b, framing.join(framing.beats(f, b.rng) for f in frames), [verdict(b, f) for f in frames], deadline)


def bound(frames: list[bytes]) -> int:
    """Cycles at full rate: every flit in, the last frame's payload out."""
    return framing.flits(frames) + max(0, -(-(len(frames[-1]) - packet.HEADER_BYTES) // 64) - 1)


def good_frame(b: Bench, op: int, n: int, **change) -> bytes:
    meta = framing.random_meta(b.rng, op, n, dest=NODE)
    return framing.scapy_frame(meta, b.rng.bytes(n), int(b.rng.integers(1 << 16)), **change)


def model_frame(b: Bench, op: int, n: int) -> bytes:
    """As :func:`good_frame`, from the golden model (checked against scapy in test_opcodes): where many are needed."""
    return golden.build(framing.random_meta(b.rng, op, n, dest=NODE), b.rng.bytes(n), int(b.rng.integers(1 << 16)))


def flip(frame: bytes, byte: int, bit: int) -> bytes:
    return frame[:byte] + bytes([frame[byte] ^ 1 << bit]) + frame[byte + 1:]


def reseal(frame: bytes, ip_sum: bool = True) -> bytes:
    """The frame with IPv4 checksum and iCRC made right again, by zlib."""
    f = bytearray(frame)
    if ip_sum:
        f[24:26] = b"\0\0"
        total = sum(struct.unpack(">10H", f[14:34]))
        total = (total & 0xFFFF) + (total >> 16)
        f[24:26] = (~(total + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    seen = bytearray(f)
    for at in (15, 22, 24, 25, 40, 41, 46):
        seen[at] = 0xFF
    return bytes(f[:-4]) + zlib.crc32(b"\xff" * 8 + seen[14:-4]).to_bytes(4, "little")


@cocotb.test()
async def test_opcodes(dut):
    b = await Bench.start(dut)
    mtu = b.config.node.nic.mtu
    cases = framing.all_cases() + [(op, n) for op in framing.OPCODES[::3] for n in (1023, 1024, 1025, mtu - 1, mtu)]
    b.rng.shuffle(cases)
    third = -(-len(cases) // 3)
    for i in range(3):
        frames, expected = [], []
        for op, n in cases[i * third:(i + 1) * third]:
            meta = framing.random_meta(b.rng, op, n, dest=NODE)
            payload, src = b.rng.bytes(n), int(b.rng.choice(framing.NODES))
            frame = framing.scapy_frame(meta, payload, src)
            fill = int(b.rng.integers(0, 61 - len(frame))) if len(frame) < 60 else 0
            frames.append(frame + b.rng.bytes(fill))
            expected.append((framing.received(meta, src), payload))
            for name, hit in (
                ("unknown-opcode", op not in iter(Opcode)), ("ethernet-padding", fill), ("icrc-split", len(frame) % 64 == 2),
                ("payload-in-last-flit-only", n and packet.header_bytes(op) // 64 == len(frame) // 64),
            ):
                if hit:
                    b.cover(name)
        framing.same([verdict(b, f) for f in frames], expected, "golden verdict")
        await offer(b, framing.join(framing.beats(f, b.rng) for f in frames), expected, 30_000)


def mixed(b: Bench, count: int, longest: int) -> list[bytes]:
    """Good frames with corrupted ones among them."""
    frames = []
    for n in b.rng.integers(0, longest, count):
        f = model_frame(b, int(b.rng.choice(framing.OPCODES)), int(n))
        frames.append(flip(f, int(b.rng.integers(len(f))), int(b.rng.integers(8))) if b.rng.random() < 0.3 else f)
    return frames


@cocotb.test()
async def test_stalls(dut):
    b = await Bench.start(dut)
    for idle in (0.0, 0.3, 0.8):
        for back in (0.0, 0.3, 0.8):
            b.stalls(back)
            b.source("link").idle = idle
            await offer_frames(b, mixed(b, 150, 400), 60_000)
            if idle and back:
                b.cover("both-stalled")


@cocotb.test()
async def test_back_to_back(dut):
    b = await Bench.start(dut)
    for op, n in ((Opcode.SEND_MIDDLE, 4096), (Opcode.ACK, 0), (Opcode.SEND_ONLY, 1), (Opcode.WRITE_ONLY_IMM, 57)):
        frames = [good_frame(b, int(op), n)] * 40
        cycles = await offer_frames(b, frames)
        assert cycles <= bound(frames) + 8, f"{cycles} cycles for {framing.flits(frames)} flits of {op.name}"
    b.cover("one-flit-frames")
    frames = mixed(b, 400, 300)
    cycles = await offer_frames(b, frames)
    b.cover("bad-between-good")
    assert cycles <= bound(frames) + 8, f"{cycles} cycles for {framing.flits(frames)} flits"
    dut._log.info("full rate: %d cycles for %d flits", cycles, framing.flits(frames))


@cocotb.test()
async def test_latency(dut):
    b = await Bench.start(dut)
    empty = await offer_frames(b, [good_frame(b, int(Opcode.ACK), 0)])
    assert empty <= 7, f"{empty} cycles: the deframer's 4, source and sink"
    for n in (1, 600):
        frame = good_frame(b, int(Opcode.WRITE_ONLY), n)
        cycles = await offer_frames(b, [frame])
        expected = empty + framing.flits([frame]) - 1 + max(0, -(-n // 64) - 1)
        assert cycles == expected, f"{cycles} cycles for {n} bytes, expected {expected}: all flits in, then all beats out"


@cocotb.test()
async def test_corruption(dut):
    b = await Bench.start(dut)
    for op, n in ((Opcode.SEND_ONLY, 3), (Opcode.WRITE_ONLY_IMM, 70), (Opcode.ACK, 0), (Opcode.SEND_LAST_IMM, 4)):
        frame = good_frame(b, int(op), n)
        frames = []
        for byte in range(len(frame)):
            for bit in range(8):
                bad = flip(frame, byte, bit)
                through = not isinstance(verdict(b, bad), DropReason)
                assert through == (byte in UNPROTECTED), f"golden verdict on byte {byte} bit {bit}"
                frames.append(bad)
        await offer_frames(b, frames + [frame])
        b.cover("unprotected-bit")
    long = good_frame(b, int(Opcode.SEND_MIDDLE), 4096)
    places = [0, 63, 64, len(long) // 2, len(long) - 65, len(long) - 5, *range(len(long) - 4, len(long))]
    await offer_frames(b, [flip(long, p, int(b.rng.integers(8))) for p in places] + [long])


@cocotb.test()
async def test_crafted(dut):
    b = await Bench.start(dut)
    mtu = b.config.node.nic.mtu
    send, only = int(Opcode.SEND_ONLY), int(Opcode.WRITE_ONLY)
    other = framing.random_meta(b.rng, send, 8, dest=NODE + 1)
    bad = {
        "ethertype IPv6": (DropReason.ETHERTYPE, good_frame(b, send, 8, eth={"type": 0x86DD})),
        "other node": (DropReason.ADDRESS, framing.scapy_frame(other, bytes(8), 1)),
        "broadcast MAC": (DropReason.ADDRESS, good_frame(b, send, 8, eth={"dst": "ff:ff:ff:ff:ff:ff"})),
        "other IPv4": (DropReason.ADDRESS, good_frame(b, send, 8, ip={"dst": "10.0.0.1"})),
        "source of no node": (DropReason.ADDRESS, good_frame(b, send, 8, ip={"src": "10.0.0.0"})),
        "source outside": (DropReason.ADDRESS, good_frame(b, send, 8, ip={"src": "192.168.0.1"})),
        "version 6": (DropReason.IP, good_frame(b, send, 8, ip={"version": 6})),
        "header of 24 bytes": (DropReason.IP, good_frame(b, send, 8, ip={"ihl": 6})),
        "TCP": (DropReason.IP, good_frame(b, send, 8, ip={"proto": 6})),
        "first fragment": (DropReason.IP, good_frame(b, send, 8, ip={"flags": "MF"})),
        "later fragment": (DropReason.IP, good_frame(b, send, 8, ip={"frag": 1})),
        "checksum": (DropReason.IP_CHECKSUM, good_frame(b, send, 8, ip={"chksum": 0x1234})),
        "port": (DropReason.UDP, good_frame(b, send, 8, udp={"dport": 4790})),
        "UDP length": (DropReason.UDP, good_frame(b, send, 8, udp={"len": 40})),
        "UDP checksum": (DropReason.UDP, good_frame(b, send, 8, udp={"chksum": 0xFFFF})),
        "version of BTH": (DropReason.BTH, good_frame(b, send, 8, bth={"version": 1})),
        "partition": (DropReason.BTH, good_frame(b, send, 8, bth={"pkey": 0xFFFE})),
        "limited member": (DropReason.BTH, good_frame(b, send, 8, bth={"pkey": 0x7FFF})),
        "above the MTU": (DropReason.OVERSIZE, good_frame(b, send, mtu + 1)),
        "far above the MTU": (DropReason.OVERSIZE, good_frame(b, send, 8000)),
        "pad without payload": (DropReason.LENGTH, good_frame(b, send, 0, bth={"padcount": 1})),
        "no room for RETH": (DropReason.LENGTH, good_frame(b, send, 12, bth={"opcode": only})),
        "RETH but no ImmDt": (DropReason.LENGTH, good_frame(b, only, 0, bth={"opcode": int(Opcode.WRITE_ONLY_IMM)})),
        "no room for AETH": (DropReason.LENGTH, good_frame(b, send, 0, bth={"opcode": int(Opcode.ACK)})),
    }
    frame = good_frame(b, send, 40)
    for delta in (-4, 4, 64, 1, 2):  # IPv4 and UDP agree, the frame does not
        f = bytearray(frame)
        for at in (16, 38):
            f[at:at + 2] = (int.from_bytes(f[at:at + 2], "big") + delta).to_bytes(2, "big")
        bad[f"lengths off by {delta}"] = (DropReason.LENGTH, reseal(bytes(f)))
    for length in (20, 28, 40, 43, 0xFFFC):  # and lengths no packet can have
        f = bytearray(frame)
        f[16:18], f[38:40] = length.to_bytes(2, "big"), ((length - 20) % 65536).to_bytes(2, "big")
        bad[f"length {length}"] = (DropReason.LENGTH, reseal(bytes(f)))
    for fill in (1, 4, 64):
        bad[f"{fill} bytes after the frame"] = (DropReason.LENGTH, frame + bytes(fill))
    bad["padded to 61"] = (DropReason.LENGTH, good_frame(b, send, 0) + bytes(3))
    bad["cut to 57"] = (DropReason.LENGTH, good_frame(b, send, 0)[:-1])
    for name, (reason, f) in bad.items():
        assert verdict(b, f) == reason, f"golden verdict on {name}: {verdict(b, f)}, expected {reason.name}"
    fine = [
        good_frame(b, send, 8, ip={"tos": 0xFF, "ttl": 1, "id": 77, "flags": 0}), good_frame(b, send, 8, udp={"sport": 4791}),
        good_frame(b, send, 8, bth={"migreq": 0, "fecn": 1, "becn": 1}), good_frame(b, only, mtu),
    ]
    for f in fine:
        assert not isinstance(verdict(b, f), DropReason)
    order = [f for _, f in bad.values()] + fine * 3
    await offer_frames(b, order)
    b.rng.shuffle(order)
    b.stalls(0.3)
    await offer_frames(b, order)


@cocotb.test()
async def test_truncated(dut):
    b = await Bench.start(dut)
    before, after = good_frame(b, int(Opcode.WRITE_FIRST), 100), good_frame(b, int(Opcode.SEND_ONLY), 2)
    frame = framing.beats(good_frame(b, int(Opcode.SEND_ONLY), 400), b.rng)
    n = len(frame)
    drop = DropReason.FRAMING

    def without(*lost: int) -> np.ndarray:
        return np.delete(frame, lost, axis=0)

    def marked(flit: int, column: int, value: int) -> np.ndarray:
        f = frame.copy()
        f[flit, column] = value
        return f

    cases: list[tuple[str, np.ndarray, list]] = [
        ("lost-first", without(0), [drop]), ("lost-last", without(n - 1), [drop]), ("lost-middle", without(n // 2), [DropReason.LENGTH]),
        ("lost-last", frame[:1], [drop]), ("lost-first", frame[-1:], [drop]), ("lost-first", frame[1:-1], [drop]),
        ("lost-last", np.concatenate([frame[:2], frame[:3]]), [drop, drop]),
        ("bad-keep", marked(1, 64, 0), [drop]), ("bad-keep", marked(1, 71, 0x7F), [drop]), ("bad-keep", marked(n - 1, 64, 0xFE), [drop]),
        ("bad-keep", marked(0, 67, 0x10), [drop]),
    ]
    ends = (verdict(b, before), verdict(b, after))
    for name, rows, drops in cases:
        await offer(b, framing.join([framing.beats(before), rows, framing.beats(after)]), [ends[0], *drops, ends[1]], 500)
        b.cover(name)
    for cut in range(1, n):  # last comes early: the flits that follow are no frame
        f = frame.copy()
        f[cut - 1, -1] |= 2
        rows = framing.join([framing.beats(before), f, framing.beats(after)])
        await offer(b, rows, [ends[0], DropReason.LENGTH, drop, ends[1]], 500)
    endless = np.repeat(frame[1:2], 3000, axis=0)
    await offer(b, framing.join([frame[:1], endless, framing.beats(after)]), [drop, ends[1]], 5000)


@cocotb.test()
async def test_garbage(dut):
    b = await Bench.start(dut)
    b.stalls(0.2)
    for _ in range(4):
        frames = []
        for _ in range(250):
            f = b.rng.bytes(int(b.rng.integers(1, 200)))
            if b.rng.random() < 0.5:  # right for a while, then garbage
                g = model_frame(b, int(b.rng.choice(framing.OPCODES)), int(b.rng.integers(0, 100)))
                at = int(b.rng.integers(12, len(g) - 1))
                f = g[:at] + f
            frames.append(f)
        results = [verdict(b, f) for f in frames]
        assert all(isinstance(r, DropReason) for r in results)
        last = good_frame(b, int(Opcode.SEND_ONLY), 64)
        await offer_frames(b, [*frames, last])
    rows = b.rng.integers(0, 256, (500, framing.BEAT_BYTES), np.uint8)  # not even beats
    rows[:, -1] &= 3
    b.pin("node").value = NODE
    b.source("link").load(rows)
    b.sink("drops").expect(1, exact=False)
    await b.run(2000)
    assert b.sink("meta").got == 0 and b.sink("data").got == 0
    await offer(b, framing.beats(last), [*[DropReason.FRAMING] * int(rows[-1, -1] < 2), verdict(b, last)], 200)


@cocotb.test()
async def test_full_buffer(dut):
    b = await Bench.start(dut)
    depth = b.config.node.nic.rx_buffer_flits
    b.sink("data").backpressure = 0.9
    frames = [model_frame(b, int(Opcode.SEND_MIDDLE), n) for n in (4096, 4095, 64, 1) * (depth // 64)]
    held = await offer_frames(b, frames, 40_000)
    assert framing.flits(frames) > depth and held > 5 * framing.flits(frames)
    b.cover("link-held")
    b.sink("data").backpressure, b.sink("meta").backpressure = 0.0, 0.95
    frames = [model_frame(b, int(Opcode.ACK), 0) for _ in range(4 * depth // 8)]
    await offer_frames(b, frames, 20_000)
    b.cover("descriptions-full")
