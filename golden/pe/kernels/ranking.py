"""Forward pass of a DLRM-style ranking model on a processing element: one program of kernels, from features to probabilities.

    genre table, as a linear layer keeps it   transposed                              Transpose
    dense features  ─► bottom tower: linear, ReLU, linear, ReLU ─► vector 0           Gemm, twice
    bag of genres   ─► sum of the table's rows                  ─► vector 1           EmbeddingBag
    categories      ─► a row of each table                      ─► vectors 2, …       Gather, each
    vectors         ─► vector 0, and the dot products of all pairs                    Interaction
                    ─► top tower: linear, ReLU, linear, ReLU, linear ─► logit         Gemm, three times
    logit           ─► sigmoid                                                        Elementwise

Numbers: features, weights and tables are rounded once to the format, biases and logits are binary32, every layer's result is rounded once to the format. Format: bfloat16,
float16, or tfloat32, which stands for float32: the dot-product engine has no binary32. It makes no tfloat32 either, so there results are binary32 and the special function
unit rounds them.

The image lies in memory from `base` on: what `weights` and `features` put there, room for what is between, and the results.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.numeric import convert
from golden.pe import sfu, sfu_rows
from golden.pe.dot_product import dot_product
from golden.pe.kernels import interaction
from golden.pe.kernels.elementwise import Elementwise
from golden.pe.kernels.embedding import EmbeddingBag, Gather
from golden.pe.kernels.gemm import Gemm, pack_rows, row_bytes
from golden.pe.kernels.interaction import Interaction
from golden.pe.kernels.rings import LINE, Instruction, up
from golden.pe.kernels.transpose import Transpose
from spec.convert import ConvertFormat
from spec.isa import OutFormat
from spec.params import PeParams
from spec.pe import DotFormat
from spec.sfu import SfuOp

F32 = ConvertFormat.FLOAT32
Arrays = Mapping[str, NDArray[Any]]
Codes = NDArray[Any]


def narrow(x: NDArray[np.float32], fmt: DotFormat) -> Codes:
    return convert.narrow(np.ascontiguousarray(x, np.float32).view(np.uint32), fmt.name.lower())


@dataclass
class Ranking:
    """`model`: parameters by their names in the trained model (bottom.*, top.*, genre.weight, single.*.weight), float32; `batch`: dense, categories, genres and offsets.

    Raises:
        ValueError: arrays that do not fit each other.
    """

    model: Arrays
    batch: Arrays
    format: DotFormat = DotFormat.BFLOAT16
    base: int = 0
    places: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = [n for n in self.model if n.startswith("single.")]
        self.bottom, self.top = ([n[: -len(".weight")] for n in self.model if n.startswith(f"{part}.") and n.endswith(".weight")] for part in ("bottom", "top"))
        self.samples = len(self.batch["dense"])
        self.width, self.genres = self.model["genre.weight"].shape
        self.vectors = 2 + len(self.tables)
        self.pairs = self.vectors * (self.vectors - 1) // 2
        shapes = {"dense": (self.samples, self._shape(self.bottom[0])[1]), "categories": (self.samples, len(self.tables)), "offsets": (self.samples + 1,)}
        for name, shape in shapes.items():
            if self.batch[name].shape != shape:
                raise ValueError(f"{name} of shape {self.batch[name].shape}; expected {shape}")
        if self._shape(self.bottom[-1])[0] != self.width or self._shape(self.top[0])[1] != self.width + self.pairs:
            raise ValueError(f"towers of {[self._shape(n) for n in (*self.bottom, *self.top)]}; expected {self.width} from the bottom one, {self.width + self.pairs} to the top one")
        self.end = self.base

    def _shape(self, layer: str) -> tuple[int, ...]:
        return self.model[f"{layer}.weight"].shape

    @property
    def size(self) -> int:
        return self.format.slot_bits // 8

    def _row(self, columns: int) -> int:
        return row_bytes(self.format, columns)

    # -- memory ---------------------------------------------------------------------------------------------------------------------

    def _room(self, name: str, nbytes: int) -> int:
        self.places[name] = self.end
        self.end = up(self.end + nbytes, LINE)
        return self.places[name]

    def image(self) -> NDArray[np.uint8]:
        """Memory from `base` on before the program runs."""
        self.end = self.base
        data: list[tuple[int, NDArray[np.uint8]]] = []

        def put(name: str, values: NDArray[Any]) -> None:
            flat = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
            data.append((self._room(name, len(flat)), flat))

        for layer in (*self.bottom, *self.top):
            put(f"{layer}.weight", pack_rows(narrow(self.model[f"{layer}.weight"], self.format), self.format))
            put(f"{layer}.bias", self.model[f"{layer}.bias"].astype("<f4"))
        for n in (*self.tables, "genre.weight"):
            put(n, narrow(self.model[n], self.format))
        put("dense", pack_rows(narrow(self.batch["dense"], self.format), self.format))
        put("index", np.ascontiguousarray(self.batch["categories"].T).astype("<u4"))
        put("genres", self.batch["genres"].astype("<u4"))
        for name, columns in (("table", 0), ("vectors", self.vectors * self._row(self.width)), ("x", self._row(self.width + self.pairs)), ("pairs", 4 * self.pairs),
                              *((n, self._row(self._shape(n)[0])) for n in (*self.bottom, *self.top[:-1])), ("wide", 4 * self._widest()), ("logit", 4), ("probability", 4)):
            self._room(name, self.genres * self.width * self.size if name == "table" else self.samples * columns)
        out = np.zeros(self.end - self.base, np.uint8)
        for at, flat in data:
            out[at - self.base : at - self.base + len(flat)] = flat
        return out

    def _widest(self) -> int:
        return max(self._shape(n)[0] for n in (*self.bottom, *self.top))

    # -- program --------------------------------------------------------------------------------------------------------------------

    def kernels(self) -> list[tuple[str, Any]]:
        """(what it makes, kernel) in order; `image` has said where everything is."""
        return list(self._kernels())

    def program(self, pe: PeParams) -> list[Instruction]:
        """Instructions of one core."""
        return [i for _, k in self.kernels() for i in k.program(pe)]

    def bound(self, pe: PeParams, latency: int = 0) -> int:
        """Cycles of the kernels' bounds, one after the other."""
        return sum(k.bound(pe, latency) for _, k in self.kernels())

    def _kernels(self) -> Iterator[tuple[str, Any]]:
        at, n, row = self.places, self.samples, self._row(self.width)
        sample = self.vectors * row
        own = ConvertFormat[self.format.name]
        yield "genre table", Transpose(rows=self.width, columns=self.genres, size=self.size, a=at["genre.weight"], b=at["table"])
        x = at["dense"]
        for k, layer in enumerate(self.bottom):
            last = k == len(self.bottom) - 1
            y = at["vectors"] if last else at[layer]
            yield from self._linear(layer, x, y, sample if last else self._row(self._shape(layer)[0]))
            x = y
        offsets = tuple(int(o) for o in self.batch["offsets"])
        yield "genres", EmbeddingBag(offsets=offsets, columns=self.width, format=own, table=at["table"], index=at["genres"], y=at["vectors"] + row, stride_out=sample)
        for k, name in enumerate(self.tables):
            yield name, Gather(lookups=n, row_bytes=self.width * self.size, table=at[name], index=at["index"] + 4 * n * k, y=at["vectors"] + (2 + k) * row, stride_out=sample)
        x, stride = at["x"], self._row(self.width + self.pairs)
        wide = dict(pairs=at["pairs"], stride_pairs=4 * self.pairs) if self.format is DotFormat.TFLOAT32 else {}
        yield "interaction", Interaction(samples=n, vectors=self.vectors, k=self.width, format=self.format, v=at["vectors"], x=x, stride_x=stride, **wide)
        if wide:
            yield "interaction, rounded", self._rounded(self.pairs, at["pairs"], x + self.width * self.size, stride)
        for layer in self.top[:-1]:
            yield from self._linear(layer, x, at[layer], self._row(self._shape(layer)[0]))
            x = at[layer]
        yield self.top[-1], self._gemm(self.top[-1], x, at["logit"], 4, OutFormat.FLOAT32, relu=False)
        yield "sigmoid", Elementwise(op=SfuOp.SIGMOID, rows=1, columns=n, format=F32, x=at["logit"], y=at["probability"])

    def _gemm(self, layer: str, x: int, y: int, stride: int, out: OutFormat, *, relu: bool) -> Gemm:
        n, k = self._shape(layer)
        return Gemm(m=self.samples, n=n, k=k, format_a=self.format, format_w=self.format, a=x, w=self.places[f"{layer}.weight"], bias=self.places[f"{layer}.bias"], c=y,
                    stride_c=stride, out=out, relu=relu)

    def _rounded(self, columns: int, x: int, y: int, stride: int) -> Elementwise:
        return Elementwise(op=SfuOp.COPY, rows=self.samples, columns=columns, format=F32, format_out=ConvertFormat[self.format.name], x=x, y=y, stride_out=stride)

    def _linear(self, layer: str, x: int, y: int, stride: int) -> Iterator[tuple[str, Any]]:
        """Linear and ReLU, rounded to the format."""
        if self.format is not DotFormat.TFLOAT32:
            yield layer, self._gemm(layer, x, y, stride, OutFormat[self.format.name], relu=True)
            return
        columns = self._shape(layer)[0]
        yield layer, self._gemm(layer, x, self.places["wide"], 4 * columns, OutFormat.FLOAT32, relu=True)
        yield f"{layer}, rounded", self._rounded(columns, self.places["wide"], y, stride)

    # -- what it must give ----------------------------------------------------------------------------------------------------------

    def direct(self) -> dict[str, Codes]:
        """Logits and probabilities, codes of binary32, without a program."""
        name = self.format.name.lower()

        def linear(x: Codes, layer: str) -> Codes:
            w, bias = narrow(self.model[f"{layer}.weight"], self.format), self.model[f"{layer}.bias"].view(np.uint32)
            return dot_product(x, w, name, name, bias=bias[None])

        def tower(x: Codes, layers: list[str]) -> Codes:
            for layer in layers:
                x = convert.narrow(sfu.unary(SfuOp.RELU, linear(x, layer), "float32"), name)
            return x

        x = narrow(self.batch["dense"], self.format)
        table = narrow(self.model["genre.weight"].T, self.format)
        bags = [table[self.batch["genres"][s:e]] for s, e in zip(self.batch["offsets"], self.batch["offsets"][1:], strict=False)]
        sums = [sfu_rows.row(SfuOp.ROW_SUM, b.T, name) if len(b) else np.zeros(self.width, table.dtype) for b in bags]
        rows = [narrow(self.model[n], self.format)[self.batch["categories"][:, k]] for k, n in enumerate(self.tables)]
        head, pairs = interaction.direct(np.stack([tower(x, self.bottom), np.array(sums), *rows], axis=1), self.format)
        if self.format is DotFormat.TFLOAT32:
            pairs = convert.narrow(pairs, name)
        logit = linear(tower(np.concatenate([head, pairs], axis=1), self.top[:-1]), self.top[-1])
        return {"logit": logit[:, 0], "probability": sfu.unary(SfuOp.SIGMOID, logit[:, 0], "float32")}

    def results(self, memory: NDArray[np.uint8]) -> dict[str, Codes]:
        """Logits and probabilities that lie in memory after the program."""
        return {n: np.ascontiguousarray(memory[self.places[n] : self.places[n] + 4 * self.samples]).view("<u4").astype(np.uint32) for n in ("logit", "probability")}
