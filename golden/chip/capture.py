"""Capture of the functional system: the packets of its messages, as a lossless network without delay would carry them.

A message is written when it has been carried out: its packets in order, each that asks for it followed by its acknowledgement. Of a message that was
refused: the packets up to the one at fault, and the NAK. Messages that wait leave nothing, as do PSNs the peer has had before. There is no
time: packet n is stamped n nanoseconds. Each packet is seen twice, leaving its node and reaching the other.
"""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from golden.net.pcap import Writer, link_names
from golden.net.wire import packets
from golden.nic.packet import build
from spec.packet import PSN_BITS, Opcode, Syndrome
from spec.params import NicParams
from spec.wqe import Op

if TYPE_CHECKING:
    from golden.nic.qp import Nic, QueuePair

MASK = (1 << PSN_BITS) - 1


class Capture:
    """Writes `path`; `nodes` interfaces pairs as `golden.net.pcap.link_names` has them."""

    def __init__(self, path: str | Path, nodes: int):
        self._writer = Writer(path, interfaces=link_names(nodes))
        self._packets = 0

    def message(
        self, source: tuple[Nic, QueuePair], target: tuple[Nic, QueuePair], wqe: dict[str, int], payload: bytes, *, refused: tuple[int, int] | None = None
    ) -> None:
        """A message from `source` to `target`, whose PSNs begin at the source's `sq_psn`, and the target's MSN is the one before it.

        Args:
            refused: packets carried out, and the syndrome that the next one got.
        """
        (nic, qp), (there, other) = source, target
        p: NicParams = nic.params
        if wqe["opcode"] == Op.READ:
            self._read(source, target, wqe, payload, refused)
            return
        cut = packets(wqe["opcode"], wqe["length"], p.mtu)
        every, at = min(p.ack_every, p.window), 0
        for i, (opcode, size) in enumerate(cut):
            last, at_fault = i == len(cut) - 1, refused is not None and i == refused[0]
            ask = last or (i + 1) % every == 0
            psn = (qp.sq_psn + i) & MASK
            meta = {
                "opcode": int(opcode), "ack_req": int(ask), "psn": psn, "va": wqe["addr_d"], "rkey": wqe["rkey"], "dma_len": wqe["length"],
                "imm": wqe["imm"],
            }  # fmt: skip
            self._packet(nic, there, qp.dest_qp, meta, payload[at : at + size])
            at += size
            if ask or at_fault:
                syndrome = refused[1] if refused is not None and at_fault else int(Syndrome.ACK)
                msn = (other.msn + (last and not at_fault)) & MASK
                self._packet(there, nic, other.dest_qp, {"opcode": int(Opcode.ACK), "psn": psn, "syndrome": syndrome, "msn": msn}, b"")
            if at_fault:
                return

    def _read(
        self, source: tuple[Nic, QueuePair], target: tuple[Nic, QueuePair], wqe: dict[str, int], payload: bytes, refused: tuple[int, int] | None
    ) -> None:
        (nic, qp), (there, other) = source, target
        meta = {"opcode": int(Opcode.READ_REQUEST), "ack_req": 1, "psn": qp.sq_psn, "va": wqe["addr_a"], "rkey": wqe["rkey"], "dma_len": wqe["length"]}
        self._packet(nic, there, qp.dest_qp, meta, b"")
        answer = [(Opcode.ACK, 0)] if refused else packets(Op.READ, wqe["length"], nic.params.mtu)
        at, msn, syndrome = 0, (other.msn + (not refused)) & MASK, refused[1] if refused else int(Syndrome.ACK)
        for i, (opcode, size) in enumerate(answer):
            meta = {"opcode": int(opcode), "psn": (qp.sq_psn + i) & MASK, "msn": msn, "syndrome": syndrome}  # a MIDDLE carries no AETH
            self._packet(there, nic, other.dest_qp, meta, payload[at : at + size])
            at += size

    def _packet(self, sender: Nic, receiver: Nic, qp: int, meta: dict[str, int], payload: bytes) -> None:
        frame = build({**meta, "dest_node": receiver.node, "dest_qp": qp}, payload, sender.node)
        for interface in (2 * sender.port, 2 * receiver.port + 1):
            self._writer.frame(self._packets, frame, interface)
        self._packets += 1

    def close(self) -> None:
        self._writer.close()
