"""AXI4 and AXI4-Lite as Amaranth signatures: each channel a stream of a struct payload (AMBA AXI IHI 0022, issue H).

Seen from the manager: `aw`, `w`, `ar` go out, `b`, `r` come in; use ``.flip()`` for the subordinate.
Bursts are INCR, full width (`size` = log2 of the data bytes) unless a block says otherwise, and never cross 4 KiB.
"""
from __future__ import annotations

from enum import IntEnum

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from spec.params import MemParams

BOUNDARY = 4096


class Resp(IntEnum):
    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class Burst(IntEnum):
    FIXED = 0
    INCR = 1
    WRAP = 2


class AXI4Signature(wiring.Signature):
    """AXI4 manager port.

    Args: `data_bytes` (power of two), `addr_width`, `id_width` in bits.
    Channels: `aw`/`ar` {addr, len, size, burst, id}; `w` {data, strb, last}; `b` {resp, id}; `r` {data, resp, last, id}.
    """

    def __init__(self, *, data_bytes: int, addr_width: int, id_width: int):
        self.data_bytes, self.addr_width, self.id_width = data_bytes, addr_width, id_width
        self.size = exact_log2(data_bytes)
        self.addr_layout = data.StructLayout({"addr": addr_width, "len": 8, "size": 3, "burst": 2, "id": id_width})
        self.w_layout = data.StructLayout({"data": 8 * data_bytes, "strb": data_bytes, "last": 1})
        self.b_layout = data.StructLayout({"resp": 2, "id": id_width})
        self.r_layout = data.StructLayout({"data": 8 * data_bytes, "resp": 2, "last": 1, "id": id_width})
        super().__init__({
            "aw": Out(stream.Signature(self.addr_layout)),
            "w": Out(stream.Signature(self.w_layout)),
            "b": In(stream.Signature(self.b_layout)),
            "ar": Out(stream.Signature(self.addr_layout)),
            "r": In(stream.Signature(self.r_layout)),
        })

    @classmethod
    def of(cls, p: MemParams) -> "AXI4Signature":
        return cls(data_bytes=p.data_bytes, addr_width=p.addr_width, id_width=p.id_width)

    def __eq__(self, other):
        return isinstance(other, AXI4Signature) and (self.data_bytes, self.addr_width, self.id_width) == (
            other.data_bytes, other.addr_width, other.id_width)

    def __repr__(self):
        return f"AXI4Signature(data_bytes={self.data_bytes}, addr_width={self.addr_width}, id_width={self.id_width})"


class AXI4LiteSignature(wiring.Signature):
    """AXI4-Lite manager port, 32-bit data. Channels: `aw`/`ar` {addr}; `w` {data, strb}; `b` {resp}; `r` {data, resp}."""

    def __init__(self, *, addr_width: int = 20):
        self.addr_width = addr_width
        super().__init__({
            "aw": Out(stream.Signature(data.StructLayout({"addr": addr_width}))),
            "w": Out(stream.Signature(data.StructLayout({"data": 32, "strb": 4}))),
            "b": In(stream.Signature(data.StructLayout({"resp": 2}))),
            "ar": Out(stream.Signature(data.StructLayout({"addr": addr_width}))),
            "r": In(stream.Signature(data.StructLayout({"data": 32, "resp": 2}))),
        })

    def __eq__(self, other):
        return isinstance(other, AXI4LiteSignature) and self.addr_width == other.addr_width

    def __repr__(self):
        return f"AXI4LiteSignature(addr_width={self.addr_width})"
