"""Register map of a node, reached by AXI4-Lite (32-bit data): one table that builds hardware, driver and documentation.

Indexed registers repeat every `stride` bytes, `count` times (taken from the parameters). Access: `rw`; `ro`; `wo` (reads 0);
`w1` (a write is a command, one pulse with the data; reads 0). Offsets are byte addresses, 4-byte aligned.

A reset gives every register its `reset`, but `mr_base`, `mr_key`, `mr_access`, `qp_dest_qp` and `qp_dest_node` keep what they hold: no region
is valid before its `mr_size` is written, and a queue pair is opened by writing its peer.
"""
from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from spec.params import NodeParams


@dataclass(frozen=True, kw_only=True)
class Register:
    name: str
    offset: int
    access: str
    doc: str
    width: int = 32
    reset: int = 0
    count: int = 1
    stride: int = 0


class QpState(IntEnum):
    """Queue-pair states (verbs' words; IBA vol. 1 section 10.3)."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    ERR = 5


class Access(IntEnum):
    """Memory-region rights, as bits. Local read is always granted."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4


ID_VALUE = 0x54574E59  # "TWNY"
VERSION = 0x0001_0000


def _r(name: str, offset: int, access: str, doc: str, **kw: int) -> Register:
    return Register(name=name, offset=offset, access=access, doc=doc, **kw)


def node_registers(p: NodeParams) -> tuple[Register, ...]:
    """The map of one node. Queue `q`'s copy of a queue register is at ``offset + q * stride``."""
    q = dict(count=p.me.queues, stride=0x20)
    m = dict(count=p.nic.mrs, stride=0x20)
    n = dict(count=p.nic.qps, stride=0x40)
    return (
        _r("id", 0x0000, "ro", "ID_VALUE", reset=ID_VALUE),
        _r("version", 0x0004, "ro", "VERSION", reset=VERSION),
        _r("node", 0x0008, "rw", "this node's number on the network", width=16),
        _r("event", 0x000C, "ro", "CQEs written with Flag.EVENT since reset, modulo 2^32"),
        _r("cq_base", 0x0010, "rw", "completion ring, byte address, 64-byte aligned"),
        _r("cq_size", 0x0014, "rw", "completion ring entries, a power of two; 0: engine does not start", width=32),
        _r("cq_tail", 0x0018, "ro", "CQEs written since reset, modulo 2^32"),
        _r("cq_head", 0x001C, "rw", "CQEs consumed by software; the engine stalls while tail - head = size"),
        _r("wait_timeout", 0x0020, "rw", "cycles after which a WAIT ends in WAIT_TIMEOUT; 0: never", reset=1 << 20),
        _r("wq_base", 0x1000, "rw", "work ring, byte address, 64-byte aligned", **q),
        _r("wq_size", 0x1004, "rw", "work ring entries, a power of two", **q),
        _r("wq_tail", 0x1008, "rw", "doorbell: WQEs posted since the queue was made, modulo 2^32", **q),
        _r("wq_head", 0x100C, "ro", "WQEs done (completed in order), modulo 2^32", **q),
        _r("wq_state", 0x1010, "ro", "bit 0: error (flushing); 1: a WQE is held by a dependency, or a WAIT polls; 2: reset pending; 3: a CQE could not be written", **q),
        _r("wq_reset", 0x1014, "w1", "forget error and counters; with work outstanding it takes effect when that is done (wq_state bit 2 until then)", **q),
        _r("mr_base", 0x4000, "rw", "memory region: first byte", **m),
        _r("mr_size", 0x4004, "rw", "bytes; 0: not valid", **m),
        _r("mr_key", 0x4008, "rw", "lkey and rkey (equal); key & (mrs-1) must be the region's index", **m),
        _r("mr_access", 0x400C, "rw", "Access bits", width=3, **m),
        _r("qp_state", 0x8000, "rw", "QpState; the hardware moves it to ERR by itself", width=3, **n),
        _r("qp_dest_qp", 0x8004, "rw", "peer's queue pair number", width=24, **n),
        _r("qp_dest_node", 0x8008, "rw", "peer's node number", width=16, **n),
        _r("qp_sq_psn", 0x800C, "rw", "first PSN to send; read: next PSN to send", width=24, **n),
        _r("qp_rq_psn", 0x8010, "rw", "first PSN expected; read: next expected", width=24, **n),
        _r("nic_tx_packets", 0x0100, "ro", "packets sent, ACKs included"),
        _r("nic_rx_packets", 0x0104, "ro", "packets received whole and right"),
        _r("nic_rx_dropped", 0x0108, "ro", "frames dropped: bad iCRC, length, header, or unknown queue pair"),
        _r("nic_retransmits", 0x010C, "ro", "go-back-N restarts (NAK or timeout)"),
        _r("nic_duplicates", 0x0110, "ro", "packets received again and acknowledged without effect"),
        _r("nic_naks", 0x0114, "ro", "NAKs and RNR NAKs sent"),
        _r("nmc_busy", 0x0118, "ro", "cycles in which near-memory compute wrote 64 bytes of a result, or the rest of one"),
    )


def address(p: NodeParams, name: str, index: int = 0) -> int:
    """Byte address of register `name`, copy `index`.

    Raises:
        KeyError: no such register. IndexError: no such copy.
    """
    for r in node_registers(p):
        if r.name == name:
            if not 0 <= index < r.count:
                raise IndexError(f"register {name}: copy {index} of {r.count}")
            return r.offset + index * r.stride
    raise KeyError(f"no register {name!r}; known: {', '.join(r.name for r in node_registers(p))}")
