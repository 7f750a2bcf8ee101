"""Capture a trained ranking model: its weights, a batch of inputs, and torch's own outputs, for a forward pass on the processing element.

    python examples/capture_ranking.py --data DIR --out examples/data/ranking.npz

The model, its data and its training are those of examples/capture_gradients.py, which says where the data come from. What is saved is the model after
its warm-up steps, in float32.

The inputs are of the samples that the next step would have taken, but every feature is permuted over the batch on its own: no rating is in the output, nor
a user's or a film's record.

Output (`numpy.load(..., allow_pickle=False)`): every parameter under its name; ``dense`` (samples, 6) float32; ``categories`` (samples, 5) int32, rows of the
tables user, item, gender, age and occupation; ``genres``, the bags' rows of the genre table one after the other, int32, and ``offsets`` (samples + 1), where each
bag starts; ``logit`` and ``probability``, what torch's float32 gives; ``meta``, a JSON text of what they were made with.

Deterministic as examples/capture_gradients.py is. Needs torch (tested with 2.13.0, CPU) and NumPy.
"""
from __future__ import annotations

import json

import numpy as np
import torch
from capture_gradients import options, trained


def main() -> None:
    ap = options((__doc__ or "").splitlines()[0], "ranking.npz")
    ap.add_argument("--samples", type=int, default=256, help="of the batch that is saved")
    args, data, model, order = trained(ap)
    at = args.warmup * args.ranks * args.batch
    chosen = order[at : at + args.samples]
    mix = torch.Generator().manual_seed(args.seed)

    def permuted(x: torch.Tensor) -> torch.Tensor:
        return x[chosen][torch.randperm(len(chosen), generator=mix)]

    categories = torch.stack([permuted(c) for c in data.categories.T], dim=1)
    dense = torch.stack([permuted(c) for c in data.dense.T], dim=1)
    bags = permuted(data.genres)
    with torch.no_grad():
        logit = model(categories, bags, dense)
    meta = {
        "what": "trained ranking model, a batch of inputs, torch's outputs; float32", "model": "DLRM-shaped ranking model of examples/capture_gradients.py",
        "tables": list(model.single), "width": args.width, "samples": len(chosen), "ranks": args.ranks, "batch": args.batch, "warmup": args.warmup, "seed": args.seed,
        "dataset": "MovieLens-100k (GroupLens), from recbole 1.2.1; weights, and features each permuted on its own", "torch": torch.__version__, "numpy": np.__version__,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lengths = bags.sum(dim=1).int().numpy()
    np.savez_compressed(
        args.out, meta=np.array(json.dumps(meta)), dense=dense.numpy(), categories=categories.int().numpy(), genres=bags.nonzero()[:, 1].int().numpy(),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), logit=logit.numpy(), probability=torch.sigmoid(logit).numpy(),
        **{name: p.detach().numpy() for name, p in model.named_parameters()})
    print(f"{args.out}: {sum(p.numel() for p in model.parameters())} parameters, {len(chosen)} samples, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
