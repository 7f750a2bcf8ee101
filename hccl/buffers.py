"""Arrays of the caller: element types, checks, and bytes to and from the machine.

bfloat16 has no NumPy type: it comes as uint16 bit patterns with ``dtype="bfloat16"``, or as an array of a package that names its
type so (ml_dtypes); the library itself needs none.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccl.errors import UsageError
from hccl.plan import DTYPES
from spec.wqe import DTYPE_BYTES

_NATIVE = {"float32": "float32", "float16": "float16", "int32": "int32", "bfloat16": "bfloat16"}
_BITS = {"bfloat16": "uint16"}  # bit patterns accepted where the dtype is given


def dtype_name(array: Any, dtype: str | None, who: str) -> str:
    """Element type of `array`, which `dtype` (None: as the array says) must agree with.

    Raises:
        UsageError: not an array, an unknown or unsupported type, or one that differs from `dtype`.
    """
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{who}: {type(array).__name__} is not an array; expected a numpy.ndarray")
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{who}: a masked array, whose mask would be lost; expected a plain numpy.ndarray")
    if dtype is not None and (not isinstance(dtype, str) or dtype not in DTYPES):
        raise UsageError(f"{who}: dtype {dtype!r} is not supported; expected one of {', '.join(DTYPES)}")
    own = str(array.dtype.name)
    if array.dtype.byteorder == ">":
        raise UsageError(f"{who}: big-endian {array.dtype}; expected the machine's byte order")
    if own in _NATIVE:
        if dtype is not None and dtype != own:
            raise UsageError(f"{who}: array is {own}, dtype says {dtype}; expected them to be equal")
        return own
    if dtype is not None and own == _BITS.get(dtype):
        return dtype
    hint = "; bit patterns of bfloat16 need dtype='bfloat16'" if own == "uint16" and dtype is None else ""
    raise UsageError(f"{who}: element type {own} is not supported{f' as {dtype}' if dtype else ''}; expected one of "
                     f"{', '.join(DTYPES)}{hint}")  # fmt: skip


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


def itemsize(dtype: str) -> int:
    return DTYPE_BYTES[DTYPES[dtype]]
