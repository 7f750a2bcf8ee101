"""`hccl perf`: the table that users of nccl-tests know."""
from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hccl import cli, io, perf
from hccl.communicator import Communicator
from hccl.devices import KINDS, open_device
from hccl.dtypes import DTYPES, OPS, check_dtype, check_reduction
from hccl.errors import HcclError, UsageError, integer
from hccl.layout import REDUCING


@cli.app.command("perf")
def command(
    collective: Annotated[str, typer.Argument(help=f"one of {', '.join(perf.PERF)}")],
    begin: Annotated[str, typer.Option("--minbytes", "-b", help="smallest size")] = "8",
    end: Annotated[str, typer.Option("--maxbytes", "-e", help="largest size")] = "64K",
    factor: Annotated[int, typer.Option("--stepfactor", "-f", min=2, help="sizes grow by it")] = 2,
    step: Annotated[str, typer.Option("--stepbytes", "-i", help="sizes grow by so many bytes instead")] = "0",
    ranks: Annotated[int, typer.Option("--ranks", "-n", "-g", min=1, max=64, help="ranks, one per node")] = 4,
    device: Annotated[str, typer.Option(help=f"one of {', '.join(KINDS)}")] = "rtl",
    dtype: Annotated[str, typer.Option("--datatype", "-d", help=f"{', '.join(DTYPES)}")] = "float32",
    op: Annotated[str, typer.Option("--op", "-o", help=f"{', '.join(OPS)}")] = "sum",
    root: Annotated[int, typer.Option("--root", "-r", min=0)] = 0,
    iters: Annotated[int, typer.Option("--iters", min=1, help="runs that are timed")] = 1,
    warmup: Annotated[int, typer.Option("--warmup_iters", "-w", min=0, help="runs before them")] = 1,
    check: Annotated[bool, typer.Option("--check/--no-check", help="count wrong elements")] = True,
    algorithm: Annotated[str | None, typer.Option(help="default: HCCL_ALGO, else the collective's")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    stalls: Annotated[float, typer.Option(min=0, max=1, help="rtl: probability of a stall on a stream")] = 0.0,
    drop: Annotated[float, typer.Option(min=0, max=1, help="rtl: probability that a link drops a packet")] = 0.0,
    config_name: Annotated[str, typer.Option("--config", help="machine: tiny, small or mtia300")] = "tiny",
    json_out: Annotated[str | None, typer.Option("--json", metavar="OUT", help="write JSON to this file; - for standard output")] = None,
    csv_out: Annotated[str | None, typer.Option("--csv", metavar="OUT", help="write CSV to this file; - for standard output")] = None,
) -> None:
    """Time a collective over a range of sizes, out of place and in place: nccl-tests' columns, in cycles and bytes a cycle."""
    with cli._errors():
        cli._choice("collective", collective, perf.PERF)
        cli._choice("device", device, KINDS)
        if collective in REDUCING:
            check_reduction(collective, dtype, op)
        check_dtype(collective, dtype)
        integer("--root", root, 0, ranks - 1)
        if json_out == csv_out == "-":
            raise UsageError("--json - and --csv -: both to standard output; expected one of them in a file")
        for out in (json_out, csv_out):
            cli._files(json_out=out)
        wanted = list(perf.sizes(perf.parse_size(begin), perf.parse_size(end), factor, perf.parse_size(step)))
        if not wanted:
            raise UsageError(f"-b {begin} -e {end}: no size; expected the smallest to be no more than the largest")
        options: dict[str, Any] = {} if device == "golden" else {"seed": seed, "stalls": stalls, "faults": {"drop": drop} if drop else None}
        rows = []
        with open_device(device, cli._machine(config_name, ranks), **options) as machine, Communicator(machine) as comm:
            for size in wanted:
                rows.append(perf.measure(comm, collective, size, dtype=dtype, op=op, root=root, algorithm=algorithm, warmup=warmup, iters=iters,
                                         seed=seed, check=check))  # fmt: skip
        if "-" not in (json_out, csv_out):
            typer.echo(perf.table(rows))
        if json_out:
            cli._emit(json_out, json.dumps({"collective": collective, "ranks": ranks, "device": device, "rows": perf.as_dict(rows)}, indent=1))
        if csv_out == "-":
            typer.echo(perf.as_csv(rows), nl=False)
        elif csv_out:
            io.write_whole(csv_out, perf.as_csv(rows).encode())
        wrong = sum(f.wrong or 0 for r in rows for f in (r.out_of_place, r.in_place))
        if wrong:
            raise HcclError(f"{collective}: {wrong} wrong elements")
