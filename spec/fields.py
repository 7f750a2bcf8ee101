"""Bit-field records: one declaration that packs, unpacks, documents and (in `rtl`) builds hardware layouts.

A :class:`Record` lists its fields from bit 0 upward, without gaps; `reserved` fields are packed as zero
and refused when set. Words are little-endian: byte ``i`` of the packed form holds bits ``8*i .. 8*i+7``.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field: `name`, `width` in bits, what it means."""

    name: str
    width: int
    doc: str = ""


def field(name: str, width: int, doc: str = "") -> Field:
    return Field(name=name, width=width, doc=doc)


class Record:
    """An ordered, gapless set of fields.

    Args:
        name: used in error messages and documentation.
        fields: from bit 0 upward. A field named ``_`` (or starting with ``_``) is reserved.
        bits: total width; the fields must fill it exactly.

    Raises:
        ValueError: the fields do not fill `bits`, or a name is used twice.
    """

    def __init__(self, name: str, bits: int, fields: Iterable[Field]):
        self.name = name
        self.bits = bits
        self.fields = tuple(fields)
        self.offsets: dict[str, int] = {}
        at = 0
        for f in self.fields:
            if f.name in self.offsets:
                raise ValueError(f"{name}: field {f.name!r} is declared twice")
            self.offsets[f.name] = at
            at += f.width
        if at != bits:
            raise ValueError(f"{name}: fields fill {at} bits, expected {bits}")
        self.widths = {f.name: f.width for f in self.fields}

    @property
    def nbytes(self) -> int:
        return self.bits // 8

    def pack(self, values: Mapping[str, int] | None = None, /, **kwargs: int) -> int:
        """Integer of the packed record; fields not named are 0.

        Raises:
            KeyError: unknown or reserved field. ValueError: value does not fit its field. TypeError: no integer.
        """
        given = {**(values or {}), **kwargs}
        word = 0
        for name, value in given.items():
            if name not in self.widths or name.startswith("_"):
                known = ", ".join(f.name for f in self.fields if not f.name.startswith("_"))
                raise KeyError(f"{self.name} has no field {name!r}; it has {known}")
            if isinstance(value, str | float) or not hasattr(value, "__int__"):
                raise TypeError(f"{self.name}.{name} = {value!r}: expected an integer")
            value = int(value)
            if not 0 <= value < 1 << self.widths[name]:
                raise ValueError(f"{self.name}.{name} = {value} does not fit in {self.widths[name]} bits")
            word |= value << self.offsets[name]
        return word

    def unpack(self, word: int) -> dict[str, int]:
        """Field values by name (reserved fields left out)."""
        return {
            f.name: (word >> self.offsets[f.name]) & ((1 << f.width) - 1)
            for f in self.fields
            if not f.name.startswith("_")
        }

    def to_bytes(self, values: Mapping[str, int] | None = None, /, **kwargs: int) -> bytes:
        return self.pack(values, **kwargs).to_bytes(self.nbytes, "little")

    def from_bytes(self, data: bytes) -> dict[str, int]:
        if len(data) != self.nbytes:
            raise ValueError(f"{self.name}: {len(data)} bytes, expected {self.nbytes}")
        return self.unpack(int.from_bytes(data, "little"))
