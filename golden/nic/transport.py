"""Golden twin of the reliable connection, packet by packet and without time: events instead of clocks.

A :class:`Endpoint` is one queue pair: a `Requester` and a `Responder`, whose modules state the rules. The caller
moves packets, may lose, repeat, delay or damage them, and fires `timeout` and `rnr_expired`; `golden.net.exchange`
does so for two endpoints. Packets are (meta, payload) with TX_META's field names and `src_node`, or whole frames.

An error of either half is the queue pair's: the other half is flushed. Packets from another node than the peer's,
or for another queue pair, are dropped.
"""
from __future__ import annotations

from collections import deque

from golden.mem.memory import Memory, RegionTable
from golden.nic.requester import Completion, Meta, Packet, Request, Requester
from golden.nic.responder import Responder
from spec.packet import READ_RESPONSES, Opcode
from spec.params import NicParams
from spec.wqe import Op, Status


class Endpoint:
    """One queue pair of one node: packets out through :meth:`next_packet`, in through :meth:`receive`."""

    def __init__(
        self, params: NicParams, memory: Memory, regions: RegionTable, *, node: int, qpn: int, dest_node: int,
        dest_qp: int, sq_psn: int = 0, rq_psn: int = 0,
    ):
        self.node, self.qpn, self.dest_node, self.dest_qp = node, qpn, dest_node, dest_qp
        self.memory, self.regions = memory, regions
        self.requester = Requester(params, memory, regions, psn=sq_psn)
        self.responder = Responder(params, memory, regions, psn=rq_psn)
        self.replies: deque[Meta] = deque()
        self.dropped = 0

    def post(self, request: Request) -> None:
        (self.responder if request.op == Op.RECV else self.requester).post(request)
        self._couple()

    def next_packet(self) -> Packet | None:
        """The next packet for the link, acknowledgements first; meta is whole (destination filled in)."""
        out = (self.replies.popleft(), b"") if self.replies else self.responder.next_response() or self.requester.next_packet()
        self._couple()
        if out is None:
            return None
        return {**out[0], "dest_node": self.dest_node, "dest_qp": self.dest_qp}, out[1]

    def receive(self, meta: Meta, payload: bytes) -> None:
        """A packet as the framer gives it (RX_META names); from another node or for another queue pair: dropped."""
        if meta["dest_qp"] != self.qpn or meta["src_node"] != self.dest_node:
            self.dropped += 1
        elif meta["opcode"] == Opcode.ACK:
            self.requester.receive(meta)
        elif meta["opcode"] in READ_RESPONSES:
            self.requester.response(meta, payload)
        else:
            reply = self.responder.receive(meta, payload)
            if reply is not None:
                self.replies.append(reply)
        self._couple()

    def timeout(self) -> None:
        self.requester.timeout()
        self._couple()

    def _couple(self) -> None:
        """An error of either half is the queue pair's."""
        if self.requester.failed != self.responder.failed:
            if self.requester.failed:
                self.responder.fail()
            else:
                self.requester.fail(Status.WR_FLUSH_ERR)

    def drain(self) -> tuple[list[Completion], list[Completion]]:
        """Completions since the last call: of messages, of RECVs."""
        out = self.requester.completions, self.responder.completions
        self.requester.completions, self.responder.completions = [], []
        return out


__all__ = ["Completion", "Endpoint", "Meta", "Packet", "Request", "Requester", "Responder"]
