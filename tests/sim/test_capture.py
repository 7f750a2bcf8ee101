"""Captures: tshark decodes every packet kind, fields and iCRC are right (scapy's too), sequence numbers follow each other."""
from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader

from golden.chip.capture import Capture
from golden.net.pcap import Writer
from golden.nic.packet import build, icrc, parse
from hccl import Communicator, open_device
from spec.packet import FIRST_QP, HAS_AETH, HAS_IMM, HAS_RETH, ICRC_BYTES, MTUS, PSN_BITS, Opcode, Syndrome
from spec.params import config
from spec.wqe import Op
from tb.lib import registry, runner
from tests.golden.driver import Driver, recv, send, write

FIELDS = {  # tshark's names for what TX_META and RX_META call
    "opcode": "infiniband.bth.opcode", "dest_qp": "infiniband.bth.destqp", "psn": "infiniband.bth.psn", "ack_req": "infiniband.bth.a",
    "se": "infiniband.bth.se", "va": "infiniband.reth.va", "rkey": "infiniband.reth.r_key", "dma_len": "infiniband.reth.dmalen",
    "syndrome": "infiniband.aeth.syndrome", "msn": "infiniband.aeth.msn", "imm": "infiniband.immdt",
}
GUESSES = ("smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "fcoib")  # what tshark may take random payload for
ICRC, BAD, CHECKSUM = "infiniband.invariant.crc", "_ws.malformed", "ip.checksum.status"
MASK = (1 << PSN_BITS) - 1


def decoded(path: Path) -> list[dict[str, int]]:
    """tshark's reading of every frame, by our names; skipped with the reason where there is no tshark."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed (Debian package tshark): captures are not decoded here")
    names = [*FIELDS.values(), ICRC, BAD, "_ws.expert.severity", CHECKSUM]
    guesses = [x for name in GUESSES for x in ("--disable-protocol", name)]
    guesses += [x for name in ("eth_over_ib", "mellanox_eoib") for x in ("--disable-heuristic", name)]
    out = subprocess.run(
        ["tshark", "-r", str(path), *guesses, "-o", "ip.check_checksum:TRUE", "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", *(x for n in names for x in ("-e", n))],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()
    rows = []
    for line in out:
        row = dict(zip(names, line.split("|"), strict=True))
        assert not row[BAD] and not row["_ws.expert.severity"] and row[CHECKSUM] == "1", f"tshark finds fault: {row}"
        rows.append({k: _number("0x" * (k == "imm" and row[n] != "") + row[n]) for k, n in (*FIELDS.items(), ("icrc", ICRC))})
    return rows


def _number(text: str) -> int:
    """A field's value: decimal, hexadecimal, a truth, or absent (0)."""
    if not text or text in ("True", "False"):
        return int(text == "True")
    return int(text.replace(":", ""), 16) if text.startswith("0x") else int(text)


def frames(path: Path) -> Iterator[tuple[str, int, bytes]]:
    """(interface, nanoseconds, frame)."""
    with RawPcapNgReader(str(path)) as r:
        for data, meta in r:
            yield meta.ifname.decode(), (meta.tshigh << 32) + meta.tslow, data


def expect_right(path: Path) -> list[tuple[str, dict[str, int]]]:
    """tshark, scapy and the packet model agree on every frame; (interface, fields) of each."""
    seen = list(frames(path))
    assert seen and [t for _, t, _ in seen] == sorted(t for _, t, _ in seen)
    metas = []
    for (link, _, frame), row in zip(seen, decoded(path), strict=True):
        meta = parse(frame)[0]
        carried = {"opcode", "dest_qp", "psn", "ack_req", "se"}
        for names, having in (({"va", "rkey", "dma_len"}, HAS_RETH), ({"syndrome", "msn"}, HAS_AETH), ({"imm"}, HAS_IMM)):
            carried |= names if meta["opcode"] in having else set()
        assert {k: row[k] for k in FIELDS} == {k: meta[k] if k in carried else 0 for k in FIELDS}
        crc = frame[-ICRC_BYTES:]
        assert row["icrc"] == int.from_bytes(crc, "big") and int.from_bytes(crc, "little") == icrc(frame[:-ICRC_BYTES])
        assert Ether(frame)[BTH].compute_icrc(None) == crc
        metas.append((link, meta))
    return metas


def expect_in_sequence(metas: list[tuple[str, dict[str, int]]]) -> int:
    """On a network without loss: PSNs follow each other, ACKs never go back and never acknowledge what was not sent; the messages seen."""
    sent: dict[tuple[int, int], int] = {}  # last PSN to (destination interface's node, queue pair)
    acked: dict[tuple[int, int], tuple[int, int]] = {}
    messages = 0
    for link, m in metas:
        if not link.endswith(".tx"):
            continue
        flow = m["src_node"], m["dest_qp"]
        if m["opcode"] == Opcode.ACK:
            assert m["syndrome"] == Syndrome.ACK
            psn, msn = acked.get(flow, (m["psn"], m["msn"]))
            assert (m["psn"] - psn) & MASK < 1 << 23 and (m["msn"] - msn) & MASK < 1 << 23
            acked[flow] = m["psn"], m["msn"]
        else:
            assert m["psn"] == (sent.get(flow, m["psn"] - 1) + 1) & MASK
            sent[flow] = m["psn"]
            messages += Opcode(m["opcode"]).name.split("_")[1] in ("LAST", "ONLY")
    assert sent and len(acked) == len(sent)
    return messages


@pytest.mark.parametrize("mtu", [MTUS[0], MTUS[-1]])
def test_every_packet_kind(mtu, tmp_path):
    rng = np.random.default_rng(mtu)
    path = tmp_path / "kinds.pcapng"
    with Writer(path) as w:
        for opcode in Opcode:
            for n in (0,) if opcode in (Opcode.ACK, Opcode.READ_REQUEST) else (1, 2, 3, 4, mtu - 1, mtu):
                syndrome = int(rng.choice([*Syndrome, Syndrome.RNR_NAK | 14])) if opcode == Opcode.ACK else int(Syndrome.ACK)
                meta = {
                    "opcode": int(opcode), "ack_req": int(rng.integers(2)), "se": int(rng.integers(2)), "dest_node": 3,
                    "dest_qp": int(rng.integers(FIRST_QP, 1 << 24)), "psn": int(rng.integers(1 << 24)), "syndrome": syndrome,
                    "msn": int(rng.integers(1 << 24)), "va": int(rng.integers(1 << 63)), "rkey": int(rng.integers(1 << 32)),
                    "dma_len": int(rng.integers(1 << 31)), "imm": int(rng.integers(1 << 32)),
                }
                w.frame(w.frames, build(meta, rng.bytes(n), 0))
    assert {m["opcode"] for _, m in expect_right(path)} == set(Opcode)


@pytest.mark.parametrize("device", ["golden", "rtl"])
def test_a_collective(device, tmp_path):
    path = tmp_path / "run.pcapng"
    ranks, n = 4, 5001
    data = [np.full(n, r, np.float32) for r in range(ranks)]
    with open_device(device, config("tiny").replace(nodes=ranks), pcap=str(path)) as d, Communicator(d) as comm:
        result = comm.all_reduce(data)
    metas = expect_right(path)
    assert expect_in_sequence(metas) == result.wqes["SEND"] and len(metas) == 2 * sum(
        c["nic_tx_packets"] for c in result.counters)
    by_way = [sorted(tuple(m.items()) for link, m in metas if link.endswith(way)) for way in (".tx", ".rx")]
    assert by_way[0] == by_way[1]


@pytest.mark.parametrize("refused,psns,syndrome", [
    (write(3, 0, 0x9000, 3 * 4096, rkey=1), 1, Syndrome.NAK_ACCESS), (send(3, 0, 3 * 4096 + 5), 4, Syndrome.NAK_INVALID)])
def test_messages_that_are_refused(refused, psns, syndrome, tmp_path):
    """The packets up to the one at fault, and the NAK with its PSN."""
    d = Driver(config("tiny").replace(nodes=2))
    capture = Capture(tmp_path / "refused.pcapng", 2)
    for n in d.s.nodes:
        n.nic.capture = capture
        n.nic.port = n.nic.node
    d.connect(0, 3, 1, 4)
    d.post(1, 0, recv(4, 0x20000, 3 * 4096), recv(4, 0x20000, 3 * 4096))
    d.post(0, 0, dict(opcode=Op.WRITE_IMM, qpn=3, addr_a=0, addr_d=0x8000, length=4097, imm=7), refused)
    d.s.run()
    capture.close()
    metas = [m for link, m in expect_right(tmp_path / "refused.pcapng") if link.endswith(".tx")]
    kinds = [Opcode(m["opcode"]) for m in metas]
    assert kinds[:3] == [Opcode.WRITE_FIRST, Opcode.WRITE_LAST_IMM, Opcode.ACK] and metas[1]["imm"] == 7
    assert kinds.count(Opcode.ACK) == 2 and len(kinds) == 4 + psns
    assert (metas[2]["msn"], metas[-1]["msn"]) == (1, 1) and metas[-1]["syndrome"] == syndrome
    assert metas[-1]["psn"] == metas[-2]["psn"] == (0xFFFFFD + 1 + psns) & MASK


def test_a_bench(tmp_path):
    path = tmp_path / "bench.pcapng"
    out = runner.run(registry.find("framer"), "verilator", tests=["test_mtu"], pcap=path, folder=tmp_path / "run")
    assert out.passed and not out.failed
    metas = expect_right(path)
    assert len(metas) == 20
    with pytest.raises(ValueError, match="csr has no links to capture"):
        runner.run(registry.find("csr"), "verilator", pcap=path)
