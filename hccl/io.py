"""Vectors of all ranks from files and back: .npy, .npz, .safetensors.

Three ways to hold one vector per rank:

- a pattern with ``{rank}`` in it: one file per rank, each with a single array (in .npz and .safetensors: the only one in it);
- .npz or .safetensors with arrays ``rank0``, ``rank1``, …;
- one array whose first dimension is the rank.

bfloat16 is held as uint16 bit patterns. Conversion to another float type rounds once, to nearest even, from the exact value.
"""
from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric.convert import narrow, widen
from hccl.dtypes import DTYPES
from hccl.errors import UsageError

Array = NDArray[Any]

# safetensors dtype -> (our name, NumPy type of the bytes)
SAFETENSORS = {
    "F64": ("float64", "<f8"), "F32": ("float32", "<f4"), "F16": ("float16", "<f2"), "BF16": ("bfloat16", "<u2"),
    "I64": ("int64", "<i8"), "I32": ("int32", "<i4"), "I16": ("int16", "<i2"), "I8": ("int8", "i1"), "U8": ("uint8", "u1"),
}  # fmt: skip
CONVERTED = tuple(name for name, t in DTYPES.items() if t.kind in ("int", "uint") or name in ("float16", "bfloat16", "float32", "float64"))
SUFFIXES = (".npy", ".npz", ".safetensors")


def read_ranks(path: str | Path, ranks: int, dtype: str | None = None, count: int | None = None) -> tuple[list[Array], str]:
    """One array per rank, and the element type's name. bfloat16 arrays are uint16 bit patterns.

    Args:
        dtype: convert to it; None: as in the file.
        count: only the first `count` elements of each rank.

    Raises:
        UsageError: what is wrong, in which file, and what is expected.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not supported; expected one of {', '.join(DTYPES)}")
    text = str(path)
    if "{rank}" in text:
        found = [_single(Path(text.replace("{rank}", str(r)))) for r in range(ranks)]
    else:
        found = _split(Path(text), ranks)
    names = {name for _, name in found}
    if len(names) > 1:
        raise UsageError(f"{text}: ranks have element types {', '.join(sorted(names))}; expected one")
    source = names.pop()
    target = dtype or (source if source in DTYPES else None)
    if target is None:
        raise UsageError(f"{text}: element type {source} is not supported; expected one of {', '.join(DTYPES)}, or a dtype "
                         "to convert to")  # fmt: skip
    out = []
    for r, (array, name) in enumerate(found):
        if count is not None:
            if array.size < count:
                raise UsageError(f"{text}: rank {r} has {array.size} elements; expected at least count = {count}")
            array = array.reshape(-1)[:count]
        out.append(convert(array, name, target, f"{text}: rank {r}"))
    return out, target


def write_ranks(path: str | Path, arrays: list[Array]) -> None:
    """One array per rank: .npz with ``rank0``, …, or .npy with the rank as first dimension.

    Raises:
        UsageError: another suffix, or the file cannot be written.
    """
    path = Path(path)
    check_results(path)
    out = BytesIO()
    if path.suffix == ".npz":
        named: dict[str, Any] = {f"rank{i}": a for i, a in enumerate(arrays)}
        np.savez(out, **named)
    else:
        np.save(out, np.stack(arrays))
    write_whole(path, out.getvalue())


def check_results(path: str | Path) -> None:
    """Raises: UsageError: `write_ranks` could not write `path`."""
    if Path(path).suffix not in (".npy", ".npz"):
        raise UsageError(f"{path}: cannot write {Path(path).suffix or 'a file without suffix'}; expected .npy or .npz")
    check_writable(path)


def check_writable(path: str | Path) -> None:
    """Raises: UsageError: a file could not be written there; nothing is changed."""
    real = Path(path).resolve()
    why = (
        errno.EISDIR if real.is_dir() else errno.ENOENT if not real.parent.exists() else errno.ENOTDIR if not real.parent.is_dir()
        else errno.EACCES if not os.access(real if real.exists() else real.parent, os.W_OK) else 0
    )  # fmt: skip
    if why:
        raise UsageError(f"{path}: {os.strerror(why)}")


def write_whole(path: str | Path, data: bytes) -> None:
    """The file has all of `data`, or stays as it was.

    Raises:
        UsageError: it cannot be written.
    """
    check_writable(path)
    real = Path(path).resolve()
    part = real.with_name(f".{real.name}.{os.getpid()}") if real.is_file() or not real.exists() else real  # a device is written as it is
    try:
        part.write_bytes(data)
        if part != real:
            part.replace(real)
    except OSError as e:
        if part != real:
            with suppress(OSError):
                part.unlink()
        raise UsageError(f"{path}: {e.strerror or e}") from None


def convert(array: Array, source: str, target: str, where: str) -> Array:
    """Values of `array`, of type `source`, in type `target`: rounded once, to nearest even; overflow gives infinity.

    Raises:
        UsageError: floats to integers, integers that do not fit exactly where they have to, or types that are not converted.
    """
    if source == target:
        return array
    if target not in CONVERTED or source not in CONVERTED:
        raise UsageError(f"{where}: {source} to {target} is no conversion; expected types among {', '.join(CONVERTED)}")
    if DTYPES[target].kind in ("int", "uint"):
        if DTYPES[source].kind not in ("int", "uint"):
            raise UsageError(f"{where}: {source} to {target} would drop fractions; expected integers")
        info = np.iinfo(target)
        if array.size and (int(array.min()) < info.min or int(array.max()) > info.max):
            raise UsageError(f"{where}: values beyond {target}; expected {info.min} to {info.max}")
        return array.astype(target)
    if source in ("bfloat16", "float16"):
        codes = np.ascontiguousarray(array).view(np.uint16)
        bits = widen(codes, source)
    elif source == "float32":
        bits = np.ascontiguousarray(array).view(np.uint32)
    else:
        if array.dtype.kind in "iu" and array.size and max(abs(int(array.min())), abs(int(array.max()))) > 1 << 53:
            raise UsageError(f"{where}: integers beyond 2^53; expected values a float64 holds exactly")
        bits = _round_to_odd(array.astype(np.float64)) if target != "float32" else array.astype(np.float32).view(np.uint32)
    if target == "float64":
        exact = array if DTYPES[source].kind in ("int", "uint") else bits.view(np.float32)
        return exact.astype(np.float64).reshape(array.shape)
    out = narrow(bits, target)
    return out.view({"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[target]).reshape(array.shape)


def _round_to_odd(x: NDArray[np.float64]) -> NDArray[np.uint32]:
    """binary32 patterns of `x` rounded toward zero with the last bit set where inexact: a second rounding is then as one."""
    with np.errstate(all="ignore"):
        f = x.astype(np.float32)
        bits = f.view(np.uint32).copy()
        inexact = (f.astype(np.float64) != x) & ~np.isnan(x)
        bits -= (inexact & (np.abs(f.astype(np.float64)) > np.abs(x))).astype(np.uint32)
    return np.asarray(bits | inexact.astype(np.uint32))


# -- files ----------------------------------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, tuple[Array, str]]:
    """Arrays of a file with their element types; a .npy has one, called ``""``."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: cannot read {path.suffix or 'a file without suffix'}; expected {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise UsageError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    try:
        if path.suffix == ".safetensors":
            return _safetensors(path)
        data = np.load(path, allow_pickle=False)
        if isinstance(data, np.ndarray):
            return {"": _named(data, path)}
        with data:
            names = [k for k in data.files if k.startswith("rank")] or data.files  # others (metadata) are not ours to judge
            return {k: _named(data[k], path) for k in names}
    except UsageError:
        raise
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}") from None
    except MemoryError:
        raise UsageError(f"{path}: says it holds more than there is memory for") from None
    except Exception as e:  # whatever the readers of NumPy, zip and zlib think of such bytes
        raise UsageError(f"{path}: not a whole {path.suffix} file: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from None


def _named(array: Array, path: Path) -> tuple[Array, str]:
    """An array and its type's name; uint16 and the raw two bytes that NumPy stores for ml_dtypes are bfloat16 patterns."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return array.view(np.uint16), "bfloat16"
    if array.dtype == np.uint16:
        return array, "bfloat16"
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{path}: element type {array.dtype} is not supported; expected floats or integers")
    return array.astype(array.dtype.newbyteorder("="), copy=False), array.dtype.name


def _safetensors(path: Path) -> dict[str, tuple[Array, str]]:
    raw = path.read_bytes()
    if len(raw) < 8:
        raise UsageError(f"{path}: {len(raw)} bytes; expected an 8-byte header length")
    size = int.from_bytes(raw[:8], "little")
    if size > len(raw) - 8:
        raise UsageError(f"{path}: header of {size} bytes in a file of {len(raw)}; expected it to fit")
    try:
        header = json.loads(raw[8 : 8 + size])
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UsageError(f"{path}: the header is not JSON; expected a safetensors file") from None
    if not isinstance(header, dict):
        raise UsageError(f"{path}: the header is a {type(header).__name__}; expected an object")
    body = raw[8 + size :]
    out = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        try:
            kind, shape, (start, end) = info["dtype"], [int(n) for n in info["shape"]], info["data_offsets"]
            if not all(isinstance(n, int) and n >= 0 for n in (*info["shape"], start, end)):
                raise ValueError
        except (TypeError, KeyError, ValueError, OverflowError):
            raise UsageError(f"{path}: tensor {name!r} lacks dtype, shape or data_offsets") from None
        if not isinstance(kind, str) or kind not in SAFETENSORS:
            raise UsageError(f"{path}: tensor {name!r} has dtype {kind}; expected one of {', '.join(SAFETENSORS)}")
        ours, numpy_type = SAFETENSORS[kind]
        want = int(np.prod(shape, dtype=object)) * np.dtype(numpy_type).itemsize
        if not start <= end <= len(body) or end - start != want:
            raise UsageError(f"{path}: tensor {name!r} has bytes {start} to {end} of {len(body)}; expected {want} bytes "
                             f"for {kind} {shape}")  # fmt: skip
        out[name] = (np.frombuffer(body[start:end], dtype=numpy_type).reshape(shape), ours)
    return out


def _single(path: Path) -> tuple[Array, str]:
    arrays = _load(path)
    if len(arrays) != 1:
        raise UsageError(f"{path}: {len(arrays)} arrays ({', '.join(sorted(arrays)) or 'none'}); expected one, for its rank")
    return next(iter(arrays.values()))


def _split(path: Path, ranks: int) -> list[tuple[Array, str]]:
    arrays = _load(path)
    if any(k.startswith("rank") for k in arrays):
        missing = [f"rank{r}" for r in range(ranks) if f"rank{r}" not in arrays]
        if missing:
            raise UsageError(f"{path}: no {', '.join(missing)}; it has {', '.join(sorted(arrays))}; expected rank0 to rank{ranks - 1}")
        return [arrays[f"rank{r}"] for r in range(ranks)]
    if len(arrays) != 1:
        raise UsageError(f"{path}: arrays {', '.join(sorted(arrays)) or 'none'}; expected rank0 to rank{ranks - 1}, or a single array")
    array, name = next(iter(arrays.values()))
    if array.ndim < 2:
        raise UsageError(f"{path}: one array of shape {array.shape}; expected [ranks, count] with at least {ranks} ranks")
    if array.shape[0] < ranks:
        raise UsageError(f"{path}: data of {array.shape[0]} ranks; expected at least {ranks}")
    return [(array[r], name) for r in range(ranks)]
