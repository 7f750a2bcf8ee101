"""Files of vectors: three layouts, conversions that round once, and every refusal."""
from __future__ import annotations

import errno
import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hccl.errors import UsageError
from hccl.io import convert, read_ranks, write_ranks, write_whole


def safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]], *, change=None) -> Path:
    header, body = {"__metadata__": {"format": "np"}}, b""
    for name, (kind, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    if change:
        change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


X = [np.arange(6, dtype=np.float32) * (r + 1) for r in range(3)]


def same(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    return all(g.dtype == w.dtype and g.shape == w.shape and (g == w).all() for g, w in zip(got, want, strict=True))


def test_layouts(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.stack([*X, X[0]]))
    np.savez(tmp_path / "b.npz", rank0=X[0], rank1=X[1], rank2=X[2])
    np.savez(tmp_path / "c.npz", all=np.stack(X))
    safetensors(tmp_path / "d.safetensors", {f"rank{r}": ("F32", X[r]) for r in range(3)})
    safetensors(tmp_path / "e.safetensors", {"grad": ("F32", np.stack(X))})
    for r in range(3):
        np.save(tmp_path / f"f{r}.npy", X[r])
        safetensors(tmp_path / f"g{r}.safetensors", {"grad": ("F32", X[r])})
    for name in ("a.npy", "b.npz", "c.npz", "d.safetensors", "e.safetensors", "f{rank}.npy", "g{rank}.safetensors"):
        got, dtype = read_ranks(tmp_path / name, 3)
        assert dtype == "float32" and same(got, X), name
    got, _ = read_ranks(tmp_path / "a.npy", 2, count=4)
    assert same(got, [x[:4] for x in X[:2]])


def test_files_of_the_safetensors_package(tmp_path: Path) -> None:
    save_file({f"rank{r}": x.reshape(2, 3) for r, x in enumerate(X)}, tmp_path / "x.safetensors")
    assert same(read_ranks(tmp_path / "x.safetensors", 3)[0], [x.reshape(2, 3) for x in X])


def test_write_and_read(tmp_path: Path) -> None:
    for name in ("x.npy", "x.npz"):
        write_ranks(tmp_path / name, X)
        assert same(read_ranks(tmp_path / name, 3)[0], X)
    with pytest.raises(UsageError, match="expected .npy or .npz"):
        write_ranks(tmp_path / "x.txt", X)
    with pytest.raises(UsageError, match="No such file"):
        write_ranks(tmp_path / "no" / "x.npy", X)


def test_a_file_is_written_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "x.npz", tmp_path / "link.npz"
    write_ranks(path, X)
    before = path.read_bytes()
    link.symlink_to(path)

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as f:
            f.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as m, pytest.raises(UsageError, match="x.npz: No space left on device"):
        m.setattr(Path, "write_bytes", full)
        write_ranks(path, X[:1])
    assert path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["link.npz", "x.npz"]
    write_ranks(link, X[:2])
    assert link.is_symlink() and same(read_ranks(path, 2)[0], X[:2])
    write_whole("/dev/null", b"x")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("suffix", ["npy", "npz", "packed.npz", "safetensors"])
def test_damaged_files(suffix: str, tmp_path: Path) -> None:
    """Bytes changed, cut off or put in: arrays, or a refusal that names the file; never another error."""
    whole, path, rng = tmp_path / f"whole.{suffix}", tmp_path / f"x.{suffix}", np.random.default_rng(7)
    arrays = {f"rank{r}": x for r, x in enumerate(X)}
    if suffix == "npy":
        np.save(whole, np.stack(X))
    elif suffix == "safetensors":
        save_file(arrays, whole)
    else:
        (np.savez if suffix == "npz" else np.savez_compressed)(whole, **arrays)
    raw, refused = whole.read_bytes(), 0
    for _ in range(400):
        data, at = bytearray(raw), int(rng.integers(len(raw)))
        kind = rng.integers(4)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at] = rng.bytes(int(rng.integers(1, 9)))
        else:
            for i in rng.integers(min(len(raw), 200 if kind == 2 else len(raw)), size=int(rng.integers(1, 4))):
                data[i] ^= 1 << rng.integers(8)
        path.write_bytes(data)
        try:
            got, _ = read_ranks(path, 3)
            assert len(got) == 3
        except UsageError as e:
            assert str(e).startswith(str(path)) and "\n" not in str(e)
            refused += 1
    assert refused > 100


def test_bfloat16_comes_in_three_ways(tmp_path: Path) -> None:
    bits = [np.array([0x3F80, 0x7FC1, 0x0001], np.uint16)] * 2
    np.savez(tmp_path / "u.npz", rank0=bits[0], rank1=bits[1])
    np.savez(tmp_path / "m.npz", **{f"rank{i}": b.view(ml_dtypes.bfloat16) for i, b in enumerate(bits)})
    safetensors(tmp_path / "s.safetensors", {f"rank{i}": ("BF16", b) for i, b in enumerate(bits)})
    for name in ("u.npz", "m.npz", "s.safetensors"):
        got, dtype = read_ranks(tmp_path / name, 2)
        assert dtype == "bfloat16" and same(got, bits), name


def test_conversions_round_once() -> None:
    f32 = np.random.default_rng(0).integers(0, 1 << 32, 20_000).astype(np.uint32).view(np.float32)
    for target, kind in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        with np.errstate(all="ignore"):
            want = f32.astype(kind)
        got = convert(f32, "float32", target, "").view(kind)
        nan = np.isnan(f32)
        assert (got[~nan].view(np.uint16) == want[~nan].view(np.uint16)).all() and np.isnan(got[nan].astype(np.float32)).all()
    # Half an ulp of bfloat16 and a little more: through float32 the little is lost, and the tie goes to even.
    x = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8, -(1 + 2**-8 + 2**-40), 1e300, -1e300, 1e-300, np.nan])
    got = convert(x, "float64", "bfloat16", "").view(ml_dtypes.bfloat16).astype(np.float64)
    assert got[:3].tolist() == [1 + 2**-7, 1, -(1 + 2**-7)] and got[3:5].tolist() == [np.inf, -np.inf] and got[5] == 0
    assert np.isnan(got[6])
    assert convert(np.array([2049], np.int64), "int64", "float16", "")[0] == 2048
    assert convert(np.array([1 << 24 | 1], np.int32), "int32", "float32", "").dtype == np.float32
    assert convert(np.array([5], np.int64), "int64", "int32", "").dtype == np.int32
    up = convert(np.array([0x3F81], np.uint16), "bfloat16", "float32", "")
    assert up.dtype == np.float32 and up[0] == 1 + 2**-7


@pytest.mark.parametrize(
    ("name", "kw", "match"),
    [
        ("none.npy", {}, "none.npy: no such file"),
        ("f{rank}.npy", {}, "f0.npy: no such file"),
        ("folder.npz", {}, "folder.npz: is not a file"),
        ("empty.npy", {}, "not a whole .npy file"),
        ("empty.npz", {}, "not a whole .npz file"),
        ("empty.safetensors", {}, "0 bytes; expected an 8-byte header"),
        ("offset.safetensors", {}, "lacks dtype, shape or data_offsets"),
        ("shape.safetensors", {}, "lacks dtype, shape or data_offsets"),
        ("x.csv", {}, r"cannot read .csv; expected .npy, .npz, .safetensors"),
        ("two.npy", {}, "data of 2 ranks; expected at least 3"),
        ("flat.npy", {}, r"one array of shape \(6,\); expected \[ranks, count\]"),
        ("two.npz", {}, "no rank2; it has rank0, rank1"),
        ("named.npz", {}, "arrays bias, grad; expected rank0 to rank2, or a single array"),
        ("mixed.npz", {}, "element types float16, float32; expected one"),
        ("object.npz", {}, "not a whole .npz|not supported"),
        ("bool.npz", {}, "element type bool is not supported"),
        ("broken.npy", {}, "not a whole .npy file"),
        ("broken.npz", {}, "not a whole .npz file"),
        ("ok.npz", {"dtype": "int8"}, "float32 to int8 would drop fractions"),
        ("ok.npz", {"dtype": "int32"}, "float32 to int32 would drop fractions"),
        ("ok.npz", {"count": 7}, "rank 0 has 6 elements; expected at least count = 7"),
        ("long.npz", {"dtype": "int32"}, "values beyond int32"),
        ("long.npz", {"dtype": "float32"}, "integers beyond 2\\^53"),
        ("short.safetensors", {}, "3 bytes; expected an 8-byte header"),
        ("header.safetensors", {}, "expected it to fit"),
        ("json.safetensors", {}, "not JSON"),
        ("kind.safetensors", {}, "tensor 'rank0' has dtype F8_E4M3; expected one of"),
        ("size.safetensors", {}, "tensor 'rank0' has bytes 0 to 24 of 72; expected 28 bytes"),
        ("keys.safetensors", {}, "lacks dtype, shape or data_offsets"),
        ("pair{rank}.npz", {}, r"pair0.npz: 2 arrays \(a, b\); expected one"),
    ],
)
def test_refusals(tmp_path: Path, name: str, kw: dict, match: str) -> None:
    keys = [f"rank{r}" for r in range(3)]
    np.save(tmp_path / "two.npy", np.stack(X[:2]))
    np.save(tmp_path / "flat.npy", X[0])
    np.savez(tmp_path / "two.npz", rank0=X[0], rank1=X[1])
    np.savez(tmp_path / "named.npz", grad=X[0], bias=X[1])
    np.savez(tmp_path / "mixed.npz", rank0=X[0], rank1=X[1], rank2=X[2].astype(np.float16))
    np.savez(tmp_path / "double.npz", **{k: x.astype(np.float64) for k, x in zip(keys, X, strict=True)})
    np.savez(tmp_path / "object.npz", **{k: np.array([None]) for k in keys})
    np.savez(tmp_path / "bool.npz", **{k: x > 0 for k, x in zip(keys, X, strict=True)})
    np.savez(tmp_path / "ok.npz", **dict(zip(keys, X, strict=True)))
    np.savez(tmp_path / "long.npz", **{k: np.array([(1 << 62) + 1]) for k in keys})
    np.savez(tmp_path / "pair0.npz", a=X[0], b=X[1])
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY\x01")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "short.safetensors").write_bytes(b"abc")
    (tmp_path / "header.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    (tmp_path / "json.safetensors").write_bytes(struct.pack("<Q", 2) + b"{]")
    (tmp_path / "folder.npz").mkdir()
    for suffix in ("npy", "npz", "safetensors"):
        (tmp_path / f"empty.{suffix}").touch()
    tensors = {k: ("F32", x) for k, x in zip(keys, X, strict=True)}
    safetensors(tmp_path / "kind.safetensors", tensors, change=lambda h: h["rank0"].update(dtype="F8_E4M3"))
    safetensors(tmp_path / "size.safetensors", tensors, change=lambda h: h["rank0"].update(shape=[7]))
    safetensors(tmp_path / "offset.safetensors", tensors, change=lambda h: h["rank1"].update(data_offsets=["a", 9]))
    safetensors(tmp_path / "shape.safetensors", tensors, change=lambda h: h["rank1"].update(shape=[-6]))
    safetensors(tmp_path / "keys.safetensors", tensors, change=lambda h: h["rank0"].pop("shape"))
    with pytest.raises(UsageError, match=match):
        read_ranks(tmp_path / name, 3, **kw)
