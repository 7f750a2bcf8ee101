"""Arrays of the caller: element types, checks, and bytes to and from the machine.

Types that NumPy lacks (bfloat16, the float8s, complex32) come as unsigned bit patterns of their size with ``dtype=…``, or as an array of a package that
names its type so (ml_dtypes); the library itself needs none.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccl.dtypes import DTYPES, check_dtype, itemsize
from hccl.errors import UsageError
from hccl.layout import Block

__all__ = ["dtype_name", "from_bytes", "itemsize", "overlaps_itself", "pack", "to_bytes", "unpack"]


def dtype_name(array: Any, dtype: str | None, who: str) -> str:
    """Element type of `array`, which `dtype` (None: as the array says) must agree with.

    Raises:
        UsageError: not an array, an unknown or unsupported type, or one that differs from `dtype`.
    """
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{who}: {type(array).__name__} is not an array; expected a numpy.ndarray")
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{who}: a masked array, whose mask would be lost; expected a plain numpy.ndarray")
    if dtype is not None:
        check_dtype(who, dtype)
    own = str(array.dtype.name)
    if array.dtype.byteorder == ">":
        raise UsageError(f"{who}: big-endian {array.dtype}; expected the machine's byte order")
    if dtype is not None and own == DTYPES[dtype].bits:
        return dtype
    if own in DTYPES and array.dtype.itemsize == itemsize(own):
        if dtype is not None and dtype != own:
            raise UsageError(f"{who}: array is {own}, dtype says {dtype}; expected them to be equal")
        return own
    raise UsageError(f"{who}: element type {own} is not supported{f' as {dtype}' if dtype else ''}; expected one of {', '.join(DTYPES)}")


def overlaps_itself(array: NDArray[Any]) -> bool:
    """Two elements may share bytes (strides made by hand): a result written there would be lost."""
    extent = array.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride < extent:
            return array.size > 0
        extent += stride * (n - 1)
    return False


def to_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes of the elements in order, whatever the strides."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def from_bytes(data: NDArray[np.uint8], like: NDArray[Any]) -> NDArray[Any]:
    """A new array of the type and shape of `like`."""
    return np.array(data, dtype=np.uint8).view(like.dtype).reshape(like.shape)


def pack(data: NDArray[np.uint8], blocks: Sequence[Block], size: int) -> NDArray[np.uint8]:
    """Dense bytes as a buffer of the device has them: every block at its place."""
    if len(blocks) == 1:
        return data
    out = np.zeros(size, np.uint8)
    at = 0
    for b in blocks:
        out[b.offset : b.offset + b.length] = data[at : at + b.length]
        at += b.length
    return out


def unpack(data: NDArray[np.uint8], blocks: Sequence[Block]) -> NDArray[np.uint8]:
    """A device's buffer as dense bytes."""
    if len(blocks) == 1:
        return data
    return np.concatenate([data[b.offset : b.offset + b.length] for b in blocks]) if blocks else data[:0]
