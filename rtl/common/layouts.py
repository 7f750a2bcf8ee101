"""Amaranth layouts from `spec` records, and the stream payloads used everywhere."""
from __future__ import annotations

from amaranth.lib import data

from spec.fields import Record


def layout(record: Record) -> data.StructLayout:
    """StructLayout with the record's fields at the record's offsets (reserved fields keep their `_` names)."""
    return data.StructLayout({f.name: f.width for f in record.fields})


def packet_layout(data_bytes: int = 64) -> data.StructLayout:
    """Beat of a packet: `data`, `keep` (bit i: byte i valid; valid bytes are contiguous from byte 0), `first`, `last`.

    Only a last beat may have invalid bytes; every beat has at least one valid byte.
    """
    return data.StructLayout({"data": 8 * data_bytes, "keep": data_bytes, "first": 1, "last": 1})
