"""Records on the streams between blocks of a node: message engine, near-memory compute, NIC, framer.

`tag` is the requester's own: it comes back unchanged with the completion. Completions may come in any order
across blocks; within one block and queue pair they come in the order of the requests.
"""
from __future__ import annotations

from spec.fields import Record, field

TAG_BITS = 16  # message engine: queue number above the slot in its window

NMC_REQUEST = Record(
    "NMC_REQUEST",
    288,
    [
        field("tag", 16),
        field("copy", 1, "D = A; no arithmetic, bits never change"),
        field("rop", 2, "ReduceOp"),
        field("dtype", 2, "DType"),
        field("scale_en", 1, "multiply by `scale` before the one rounding"),
        field("_pad", 10),
        field("length", 32, "bytes"),
        field("addr_a", 64),
        field("addr_b", 64),
        field("addr_d", 64),
        field("scale", 32, "binary32"),
    ],
)

# Completion of near-memory compute and of the NIC, towards the message engine.
DONE = Record(
    "DONE",
    192,
    [
        field("tag", 16),
        field("status", 8, "wqe.Status"),
        field("_pad", 8),
        field("byte_len", 32, "bytes moved"),
        field("imm", 32),
        field("qpn", 24),
        field("_pad2", 8),
        field("info", 64, "failing address or NAK syndrome"),
    ],
)

NIC_REQUEST = Record(
    "NIC_REQUEST",
    320,
    [
        field("tag", 16),
        field("opcode", 8, "wqe.Op: SEND, SEND_IMM, RECV, WRITE, WRITE_IMM"),
        field("_pad", 8),
        field("qpn", 24),
        field("_pad2", 8),
        field("length", 32, "bytes"),
        field("laddr", 64, "local address"),
        field("raddr", 64, "remote virtual address"),
        field("lkey", 32),
        field("rkey", 32),
        field("imm", 32),
    ],
)

# One packet to send: the framer makes headers, padding and iCRC of it. The payload follows on the data stream, byte 0 first.
TX_META = Record(
    "TX_META",
    304,
    [
        field("opcode", 8, "packet.Opcode"),
        field("ack_req", 1),
        field("se", 1, "solicited event"),
        field("_pad", 6),
        field("dest_node", 16, "gives MAC and IPv4 address"),
        field("dest_qp", 24),
        field("_pad2", 8),
        field("psn", 24),
        field("syndrome", 8, "AETH"),
        field("msn", 24, "AETH"),
        field("_pad3", 8),
        field("length", 16, "payload bytes; 0: no beat on the data stream"),
        field("va", 64, "RETH"),
        field("rkey", 32, "RETH"),
        field("dma_len", 32, "RETH: bytes of the whole message"),
        field("imm", 32),
    ],
)

# One packet received, checked (lengths, checksums, iCRC): what the framer saw. Payload follows on the data stream.
RX_META = Record(
    "RX_META",
    304,
    [
        field("opcode", 8, "packet.Opcode, or a value the receiver must refuse"),
        field("ack_req", 1),
        field("se", 1),
        field("_pad", 6),
        field("src_node", 16, "from the IPv4 source address"),
        field("dest_qp", 24),
        field("_pad2", 8),
        field("psn", 24),
        field("syndrome", 8),
        field("msn", 24),
        field("_pad3", 8),
        field("length", 16, "payload bytes, padding removed; 0: no beat on the data stream"),
        field("va", 64),
        field("rkey", 32),
        field("dma_len", 32),
        field("imm", 32),
    ],
)
