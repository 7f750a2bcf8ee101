"""Payloads on the streams between the parts of the DMA engine. A *word* is 64 bytes at a multiple of 64, a *burst* the words of a row in one 4 KiB page."""
from __future__ import annotations

from amaranth.lib import data

from spec.params import MemParams

BYTES = 64
BURST = 64  # words of a 4 KiB page
WORDS_BITS = 27  # words of a row: 32-bit length, any offset
BEATS_BITS = 7  # 1 to 64


def word_bits(mem: MemParams) -> int:
    """Bits of a word address in either memory."""
    return mem.addr_width - 6


def row_layout(mem: MemParams) -> data.StructLayout:
    """Mid end to legaliser: a row that lies in its memories. `none`: no row, the end of a descriptor that stopped (with `last`)."""
    return data.StructLayout({
        "none": 1, "first": 1, "last": 1, "fill": 1, "src_local": 1, "dst_local": 1, "bytes": 32, "pattern": 32,
        "src": mem.addr_width, "dst": mem.addr_width,
    })


def read_layout(mem: MemParams) -> data.StructLayout:
    """Legaliser to read side: a burst."""
    return data.StructLayout({"near": 1, "word": word_bits(mem), "beats": BEATS_BITS})


def write_layout(mem: MemParams) -> data.StructLayout:
    """Legaliser to write side: a burst, the last of its row, of its descriptor; or no burst, the end of a descriptor that stopped."""
    return data.StructLayout({"none": 1, "near": 1, "row_last": 1, "last": 1, "word": word_bits(mem), "beats": BEATS_BITS})


def move_layout(mem: MemParams) -> data.StructLayout:
    """Legaliser to realigner: a row. Byte lane l of a word read goes to lane l - `turn`; lanes from -`turn` on belong to the write word of the same number, or of
    the number before (`late`). `head`: lane of the first byte written; `tail`: lanes of the last word written (0: all)."""
    return data.StructLayout({
        "first": 1, "fill": 1, "near": 1, "late": 1, "pattern": 32, "turn": 6, "head": 6, "tail": 6,
        "reads": WORDS_BITS, "writes": WORDS_BITS, "word": word_bits(mem),
    })


def word_layout() -> data.StructLayout:
    """A word read."""
    return data.StructLayout({"data": 8 * BYTES, "error": 1})


def beat_layout(mem: MemParams) -> data.StructLayout:
    """Realigner to write side. `bad`: a read of the descriptor failed, first the word `bad_word`; bytes from there on have no strobe."""
    return data.StructLayout({"data": 8 * BYTES, "strb": BYTES, "bad": 1, "bad_word": word_bits(mem)})


def outcome_layout() -> data.StructLayout:
    """How a descriptor ended: a `DmaStatus` and the failing address."""
    return data.StructLayout({"status": 8, "addr": 64})
