"""Jobs of a processing element: descriptors in a ring in memory, records of how they ended, and the registers that start them."""
from __future__ import annotations

from enum import IntEnum, IntFlag

from spec.fields import Record, field
from spec.registers import Register


class JobFlag(IntFlag):
    """What a descriptor asks for."""

    FENCE = 1  # its programs are not read before the job before it has ended, its record visible: a job may write the next one's


class JobStatus(IntEnum):
    """How a job ended."""

    OK = 0
    FAILED = 1  # an instruction ended in an error: see `fail_*`
    READ = 2  # memory refused the descriptor (then there is no record) or an instruction; a core's instructions behind that one are not carried out
    ALIGN = 3  # a program's address is no multiple of 64; nothing was carried out
    RANGE = 4  # a program goes beyond the address width; nothing was carried out


JOB = Record("JOB", 512, [
    field("tag", 32, "the user's own, with the record"),
    field("count0", 24, "instructions of core 0"), field("count1", 24, "instructions of core 1"), field("flags", 8, "JobFlag"), field("_pad", 40),
    field("program0", 64, "byte address of core 0's instructions, a multiple of 64"), field("program1", 64, "core 1's"),
    field("record", 64, "byte address of the record, a multiple of 64; 0: none"), field("_rest", 192),
])

#: Written when all instructions are done and what they wrote is visible. Times are values of the engine's cycle counter.
JOB_RECORD = Record("JOB_RECORD", 512, [
    field("tag", 32, "of the descriptor"), field("status", 8, "JobStatus"), field("_pad", 8),
    field("fail_tag", 16, "first completion in error: the instruction's tag"), field("fail_core", 1, "its core"), field("fail_unit", 3, "its Unit"), field("_fail", 4),
    field("fail_status", 8, "its CpStatus; 0: none"), field("fail_info", 32, "its info"), field("completions", 32, "instructions that ended"),
    field("_space", 48), field("address", 64, "READ: of the first instruction that could not be read, core 0's before core 1's; else 0"),
    field("doorbell", 32, "the last doorbell before the descriptor was asked for; express: the descriptor was offered"),
    field("first", 32, "the first instruction was offered to the command processor"),
    field("mac", 32, "the first streamed row met a held one; as `doorbell` if none did"),
    field("ended", 32, "the last completion came; without instructions: the job began"), field("_rest", 128),
])

#: What the engine says of every job, in order, when its record is visible.
JOB_END = Record("JOB_END", 40, [field("tag", 32), field("status", 8, "JobStatus")])


def _r(name: str, offset: int, access: str, doc: str, **kw: int) -> Register:
    return Register(name=name, offset=offset, access=access, doc=doc, **kw)


REGISTERS = (
    _r("jq_base", 0x00, "rw", "ring of descriptors: byte address, a multiple of 64, low half"),
    _r("jq_base_high", 0x04, "rw", "its high half"),
    _r("jq_size", 0x08, "rw", "entries, a power of two; 0: nothing is fetched"),
    _r("jq_tail", 0x0C, "rw", "doorbell: jobs posted since reset, modulo 2^32; at most `jq_size` ahead of `jq_head`"),
    _r("jq_head", 0x10, "ro", "jobs of the ring that have ended, their records visible, modulo 2^32"),
    _r("jq_state", 0x14, "ro", "bit 0: something is fetched, run or written", width=1),
    _r("jq_errors", 0x18, "ro", "records that were not written: no descriptor, an address that is no multiple of 64 or beyond the address width, or memory refused"),
    _r("mac_rows", 0x1C, "ro", "streamed rows that met the held ones, modulo 2^32: `pe.rows` results each, of a chunk"),
)
