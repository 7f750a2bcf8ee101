"""Work-queue elements, completions and their codes: what software and the message engine exchange in memory.

A WQE is 64 bytes and 64-byte aligned; a CQE is 32 bytes and 32-byte aligned. Queues are rings in node memory.
Names follow the verbs (wr_id, qpn, lkey, rkey, imm). Layouts are this project's own: the real chip's are undisclosed.
"""
from __future__ import annotations

from enum import IntEnum, IntFlag

from spec.fields import Record, field


class Op(IntEnum):
    """WQE opcode."""

    NOOP = 0
    SEND = 1  # addr_a: source, length, lkey -> message on qpn, consumes a RECV of the peer
    RECV = 2  # addr_d: destination, length: its capacity, lkey -> posted to qpn's receive queue
    WRITE = 3  # addr_a -> peer's addr_d under rkey
    WRITE_IMM = 4  # as WRITE, and consumes a RECV of the peer, whose CQE carries imm
    READ = 5  # peer's addr_a under rkey -> addr_d under lkey
    REDUCE = 6  # addr_d[i] = rop(addr_a[i], addr_b[i]); dtype, length in bytes
    COPY = 7  # addr_d = addr_a, length bytes
    WAIT = 8  # until 32-bit word at addr_a `cmp` imm (unsigned)
    SET = 9  # 32-bit word at addr_d = imm
    SEND_IMM = 10  # as SEND; the CQE of the peer's RECV carries imm


class Flag(IntFlag):
    """WQE ordering and completion flags."""

    FENCE = 1  # nothing later in this queue starts until this one is done
    RX_SYNC = 2  # starts only when every earlier RECV of this queue is done
    SYNC = 4  # starts only when every earlier WQE of this queue is done
    SIGNALED = 8  # write a CQE when done (errors write one whether or not it is set)
    EVENT = 16  # with the CQE, raise the node's event line
    SCALE = 32  # REDUCE only: multiply the result by `scale` (binary32) before the one rounding


class ReduceOp(IntEnum):
    SUM = 0
    MIN = 1
    MAX = 2


class DType(IntEnum):
    """Element types the near-memory engine reduces."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    INT32 = 3


DTYPE_BYTES = {DType.FLOAT32: 4, DType.BFLOAT16: 2, DType.FLOAT16: 2, DType.INT32: 4}


class Compare(IntEnum):
    """WAIT: starts what follows when ``mem[addr_a] <cmp> imm``, both unsigned 32-bit."""

    EQ = 0
    NE = 1
    GE = 2
    LT = 3


class Status(IntEnum):
    """CQE status. Names and order of the first group as in the verbs' ibv_wc_status."""

    SUCCESS = 0
    LOC_LEN_ERR = 1  # message longer than the RECV, or a length the engine cannot do
    LOC_QP_OP_ERR = 2  # unknown opcode, or one this queue pair or engine cannot run
    LOC_PROT_ERR = 4  # local address outside its memory region, or wrong lkey
    WR_FLUSH_ERR = 5  # not run: the queue or queue pair was already in error
    BAD_RESP_ERR = 7  # a READ's response that does not fit its request
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12  # no acknowledgement after all retries
    RNR_RETRY_EXC_ERR = 13  # peer never posted a RECV
    # this project's own
    MEM_ERR = 32  # memory answered SLVERR or DECERR; `info` holds the address
    ALIGN_ERR = 33  # address or length not a multiple of the element size
    WAIT_TIMEOUT = 34  # WAIT: the deadline register ran out


WQE = Record(
    "WQE",
    512,
    [
        field("opcode", 8, "Op"),
        field("flags", 8, "Flag"),
        field("wqe_sync", 8, "start only when the WQE this many places back in the queue is done; 0: none"),
        field("rop", 4, "ReduceOp"),
        field("dtype", 4, "DType"),
        field("wr_id", 32, "copied to the CQE"),
        field("qpn", 24, "queue pair of SEND, SEND_IMM, RECV, WRITE, WRITE_IMM, READ"),
        field("cmp", 8, "Compare, for WAIT"),
        field("length", 32, "bytes"),
        field("addr_a", 64, "source; operand A; WAIT's word"),
        field("addr_b", 64, "operand B"),
        field("addr_d", 64, "destination; remote virtual address of WRITE"),
        field("lkey", 32, "key of the local memory region"),
        field("rkey", 32, "key of the remote memory region"),
        field("imm", 32, "immediate; WAIT's and SET's value"),
        field("scale", 32, "binary32 bit pattern, with Flag.SCALE"),
        field("_reserved", 64),
    ],
)

CQE = Record(
    "CQE",
    256,
    [
        field("wr_id", 32, "of the WQE"),
        field("status", 8, "Status"),
        field("opcode", 8, "Op of the WQE"),
        field("queue", 8, "work queue of the WQE"),
        field("phase", 1, "1 on the ring's first lap, then 0, 1, …: tells a new CQE from an old one"),
        field("_flags", 7),
        field("byte_len", 32, "bytes moved (RECV: of the message)"),
        field("imm", 32, "immediate of the message, or 0"),
        field("qpn", 24, "queue pair"),
        field("_pad", 8),
        field("wqe_index", 32, "position of the WQE in its queue, counted from 0 since the queue was made"),
        field("info", 64, "on an error: the failing address, or the NAK syndrome"),
    ],
)

WQE_BYTES = WQE.nbytes
CQE_BYTES = CQE.nbytes
