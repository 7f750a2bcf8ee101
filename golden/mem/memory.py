"""Memory of a node and its table of regions: bounds, keys, rights and alignment, each refusal with its CQE status.

========================  ==============================================================  =============  ===========
access                    rule                                                            refused with   info
========================  ==============================================================  =============  ===========
any                       inside the memory                                               MEM_ERR        first byte
REDUCE, COPY              addresses multiples of 64                                       ALIGN_ERR      address
REDUCE                    length a multiple of the element                                ALIGN_ERR      0
REDUCE, COPY              end of an operand within `addr_width` bits                      LOC_LEN_ERR    address
SET, WAIT                 address a multiple of 4                                         ALIGN_ERR      address
SEND, WRITE source        inside the region of `lkey`                                     LOC_PROT_ERR   address
RECV destination          inside the region of `lkey`, LOCAL_WRITE; when it is posted     LOC_PROT_ERR   address
READ destination          inside the region of `lkey`, LOCAL_WRITE                        LOC_PROT_ERR   address
READ source               inside the region of `rkey`, REMOTE_READ                        REM_ACCESS_ERR the NAK
WRITE destination         inside the region of `rkey`, REMOTE_WRITE                       REM_ACCESS_ERR the NAK
========================  ==============================================================  =============  ===========

The message engine's own accesses (REDUCE, COPY, SET, WAIT, work and completion rings) are not checked against
regions, as requests to near-memory compute carry no key. An access of 0 bytes touches nothing and is never refused.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spec.registers import Access
from spec.wqe import DTYPE_BYTES, DType, Status

Bytes = NDArray[np.uint8]

OPERAND_ALIGN = 64
WORD_ALIGN = 4


class AccessError(Exception):
    """A refused access: the CQE status it ends in and the first byte refused."""

    def __init__(self, status: Status, address: int, what: str):
        super().__init__(f"{status.name} at {address:#x}: {what}")
        self.status = status
        self.address = address


class Memory:
    """`size` bytes from address 0, zero at reset."""

    def __init__(self, size: int):
        self.size = size
        self.data: Bytes = np.zeros(size, np.uint8)

    def check(self, addr: int, n: int) -> None:
        """Refuse bytes outside the memory (MEM_ERR)."""
        if n and addr + n > self.size:
            raise AccessError(Status.MEM_ERR, max(addr, self.size), f"memory has {self.size} bytes")

    def view(self, addr: int, n: int) -> Bytes:
        """The bytes themselves, not a copy."""
        self.check(addr, n)
        return self.data[addr : addr + n]

    def read(self, addr: int, n: int) -> Bytes:
        return self.view(addr, n).copy()

    def write(self, addr: int, values: Bytes) -> None:
        """`values` may be a view of this memory, overlapping or not: they are read before any is written."""
        self.view(addr, len(values))[:] = values

    def word(self, addr: int) -> int:
        """32-bit word, little-endian."""
        return int.from_bytes(self.view(addr, 4).tobytes(), "little")

    def set_word(self, addr: int, value: int) -> None:
        self.write(addr, np.frombuffer((value & 0xFFFFFFFF).to_bytes(4, "little"), np.uint8))


@dataclass
class Region:
    """One memory region; `size` 0: not valid."""

    base: int = 0
    size: int = 0
    key: int = 0
    access: int = 0


@dataclass
class RegionTable:
    """The regions of a node; a key's low bits are the index of its region."""

    count: int
    regions: list[Region] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.regions:
            self.regions = [Region() for _ in range(self.count)]

    def check(self, key: int, addr: int, n: int, rights: int, status: Status) -> None:
        """Refuse with `status` what region `key` does not allow; `rights` are `Access` bits, 0 for a local read."""
        if n == 0:
            return
        r = self.regions[key & (self.count - 1)]
        if r.size == 0 or r.key != key:
            raise AccessError(status, addr, f"no region with key {key:#x}")
        if r.access & rights != rights:
            raise AccessError(status, addr, f"region {key:#x} does not grant {Access(rights).name}")
        if addr < r.base or addr + n > r.base + r.size:
            raise AccessError(status, addr, f"{n} bytes; region {key:#x} is {r.base:#x} to {r.base + r.size:#x}")


def check_operands(*addresses: int, length: int, dtype: DType | None, addr_width: int = 64) -> None:
    """Rules of REDUCE (`dtype` given) and COPY (None) for their operands, in the order of precedence."""
    if length == 0:
        return
    for addr in addresses:
        if addr % OPERAND_ALIGN:
            raise AccessError(Status.ALIGN_ERR, addr, f"not a multiple of {OPERAND_ALIGN}")
    if dtype is not None and length % DTYPE_BYTES[dtype]:
        raise AccessError(Status.ALIGN_ERR, 0, f"length {length} is not a multiple of {DTYPE_BYTES[dtype]}")
    for addr in addresses:
        if addr + length > 1 << addr_width:
            raise AccessError(Status.LOC_LEN_ERR, addr, f"{length} bytes go beyond {addr_width} address bits")


def check_word(addr: int) -> None:
    """Alignment rule of SET and WAIT."""
    if addr % WORD_ALIGN:
        raise AccessError(Status.ALIGN_ERR, addr, f"not a multiple of {WORD_ALIGN}")
