"""The `hccl` command: run a collective on a device, look at a plan, prove a plan."""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from hccl import io
from hccl.algorithms.table import NAMES
from hccl.buffers import itemsize, to_bytes
from hccl.communicator import Communicator, Result, make_plan, plan_bound
from hccl.devices import KINDS, open_device
from hccl.dtypes import DTYPES, OPS
from hccl.errors import HcclError, PlanError, UsageError
from hccl.layout import COLLECTIVES, MATRIX, REDUCING, ROOTED, SPLIT
from hccl.plan import Plan
from hccl.proof import prove
from hccl.reference import expected
from hccl.samples import random_arrays
from spec.params import SystemParams, config

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
NAMED = tuple(c for c in COLLECTIVES if c != "send_recv")

Collective = Annotated[str, typer.Argument(help=f"one of {', '.join(NAMED)}")]
Ranks = Annotated[int, typer.Option("--ranks", "-n", min=1, max=64, help="ranks, one per node")]
DType = Annotated[str | None, typer.Option(help=f"element type: {', '.join(DTYPES)}; inputs are converted to it")]
Op = Annotated[str, typer.Option(help=f"reduction: {', '.join(OPS)}")]
Algorithm = Annotated[str | None, typer.Option(help=f"{', '.join(NAMES)} (those that the collective has); default: HCCL_ALGO, else the collective's")]
Root = Annotated[int, typer.Option(min=0, help="of broadcast, reduce, gather, scatter")]
Splits = Annotated[str | None, typer.Option(help="elements of each rank's block, 3,2,1; of all_to_all a row a rank, 1,2;3,4")]
GroupsOf = Annotated[str | None, typer.Option("--groups", help="of hierarchical: 0,1;2,3")]
Fixed = Annotated[bool, typer.Option("--fixed-order", help="only algorithms whose bits do not depend on the count")]
Factor = Annotated[float, typer.Option(help="of premul_sum")]
Config = Annotated[str, typer.Option("--config", help="machine: tiny, small or mtia300")]
JsonOut = Annotated[str | None, typer.Option("--json", metavar="OUT", help="write JSON to this file; - for standard output")]


@contextmanager
def _errors(verbose: bool = False) -> Iterator[None]:
    """Errors of the library as one line and exit code 1."""
    try:
        yield
    except MemoryError:
        typer.echo("error: the data does not fit in the memory of this computer", err=True)
        raise typer.Exit(1) from None
    except (HcclError, ValueError) as e:
        text = str(e) or type(e).__name__
        typer.echo(f"error: {text if verbose else text.splitlines()[0]}", err=True)
        raise typer.Exit(1) from None


def _machine(name: str, ranks: int) -> SystemParams:
    p = config(name)
    return p.replace(nodes=ranks, switch=p.switch.replace(ports=max(p.switch.ports, ranks)))


def _choice(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{what} {value!r} is not known; expected one of {', '.join(known)}")


def _emit(out: str, text: str) -> None:
    if out == "-":
        typer.echo(text)
        return
    io.write_whole(out, (text + "\n").encode())


def _console(json_out: str | None) -> Console:
    return Console(stderr=json_out == "-", highlight=False, width=None if sys.stdout.isatty() else 200)


def _files(*, json_out: str | None = None, **names: str | None) -> None:
    """Refuse files that cannot be written before anything runs."""
    for option, name in (("json", json_out), *names.items()):
        if name is not None and not name.strip():
            raise UsageError(f"--{option} {name!r}; expected the name of a file")
    if json_out is not None and json_out != "-":
        io.check_writable(json_out)
    if names.get("output") is not None:
        io.check_results(str(names["output"]))


def _rows(option: str, text: str | None) -> tuple[tuple[int, ...], ...]:
    """Numbers of a list of lists, 1,2;3,4."""
    try:
        return tuple(tuple(int(x) for x in row.split(",")) for row in text.split(";")) if text else ()
    except ValueError:
        raise UsageError(f"{option} {text!r}; expected numbers, as 1,2 or 1,2;3,4") from None


def _differences(result: Result, wanted: list[bytes]) -> list[str]:
    size = itemsize(result.dtype)
    out = []
    for r, (got, want) in enumerate(zip(result.outputs, wanted, strict=True)):
        if got is None:
            continue
        a, b = to_bytes(got), np.frombuffer(want, np.uint8)
        if a.tobytes() != want:
            at = int(np.flatnonzero(a != b)[0]) // size
            mine, theirs = (x[at * size : (at + 1) * size].tobytes()[::-1].hex() for x in (a, b))
            out.append(f"rank {r} element {at}: 0x{mine}, expected 0x{theirs}")
    return out


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


@app.command()
def run(
    collective: Collective,
    ranks: Ranks = 4,
    input: Annotated[str | None, typer.Option("--input", "-i", help="file with the vectors; {rank} in it: one file per rank")] = None,
    dtype: DType = None,
    device: Annotated[str, typer.Option(help=f"one of {', '.join(KINDS)}")] = "golden",
    op: Op = "sum",
    algorithm: Algorithm = None,
    root: Root = 0,
    count: Annotated[int | None, typer.Option(min=0, help="elements of a rank's vector, or block; without --input: of random data (1024)")] = None,
    splits: Splits = None,
    groups: GroupsOf = None,
    factor: Factor = 0.5,
    fixed_order: Fixed = False,
    seed: Annotated[int, typer.Option(min=0, help="seed of random data, stalls and faults")] = 0,
    stalls: Annotated[float, typer.Option(min=0, max=1, help="rtl: probability of a stall on a stream")] = 0.0,
    drop: Annotated[float, typer.Option(min=0, max=1, help="rtl: probability that a link drops a packet")] = 0.0,
    waves: Annotated[str | None, typer.Option(help="rtl: write a trace of every node and the switch to this file (FST)")] = None,
    pcap: Annotated[str | None, typer.Option(metavar="FILE", help="capture the packets of every node's link (pcapng)")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="the result replaces the input on the device")] = False,
    config_name: Config = "tiny",
    deadline: Annotated[int | None, typer.Option(min=1, help="cycles (golden: steps) allowed")] = None,
    json_out: JsonOut = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="write the results: .npz (rank0, …) or .npy")] = None,
    check: Annotated[bool, typer.Option("--check", help="compare the bits with the definition and the golden device")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="errors with the state of queues")] = False,
) -> None:
    """Run a collective on all ranks and report time and bandwidth."""
    with _errors(verbose):
        _choice("collective", collective, NAMED)
        _choice("op", op, OPS)
        _choice("device", device, KINDS)
        params = _machine(config_name, ranks)
        if device == "golden" and waves:
            raise UsageError("device golden has no waves; expected --device rtl with --waves")
        if device == "golden" and (stalls or drop):
            raise UsageError("device golden has no stalls and no loss; expected --device rtl with --stalls or --drop")
        _files(json_out=json_out, input=input, output=output, waves=waves, pcap=pcap)
        name = dtype or "float32"
        if input is not None:
            given, name = io.read_ranks(input, ranks, dtype, count)
            count = _count_of(collective, given, ranks)
        _choice("dtype", name, tuple(DTYPES))
        count, most = 1024 if count is None else count, params.node.mem.size_bytes
        if count * itemsize(name) > most:
            raise UsageError(f"--count {count}: {count * itemsize(name)} bytes of {name} on every rank; expected at most MemParams.size_bytes = {most}")
        made = _plan_of(params, collective, ranks, count, name, op, in_place, root, splits, algorithm, groups, fixed_order)
        if input is None:
            given = random_arrays([sum(b.length for b in blocks) // made.itemsize for blocks in made.layout.inputs], name, seed)
        elif in_place and collective in ("all_gather", "gather"):
            raise UsageError(f"--in-place {collective} of a file; expected random data: the input is part of the result")
        asked: dict[str, Any] = {"algorithm": made.algorithm, "deadline": deadline}
        asked |= {"op": op, "fixed_order": fixed_order} if collective in REDUCING else {}
        asked |= {"factor": _integral(factor, name)} if made.op == "premul_sum" else {}
        asked |= {"groups": made.groups} if made.groups else {}
        options: dict[str, Any] = {"seed": seed, "stalls": stalls, "faults": {"drop": drop} if drop else None, "waves": waves}
        options = {**({} if device == "golden" else options), "pcap": pcap}
        result = _collective(device, params, options, made, given, asked)
        verdict, wrong = "not checked", []
        if check:
            factors = [asked.get("factor", 1)] * ranks
            want = [x.tobytes() for x in expected(made, [to_bytes(x) for x in given], factors)]
            wrong = _differences(result, want)
            if device != "golden":
                golden = _collective("golden", params, {}, made, given, asked | {"deadline": None})
                wrong += _differences(result, [b"" if o is None else to_bytes(o).tobytes() for o in golden.outputs])
            verdict = "differ" if wrong else "equal"
        row = {
            "collective": collective, "algorithm": result.algorithm, "device": device, "ranks": ranks, "op": made.op, "dtype": name,
            "count": result.count, "bytes": result.nbytes, "root": root, "splits": list(made.splits), "cycles": result.cycles,
            "bound_cycles": result.bound_cycles, "algbw": result.algbw, "busbw": result.busbw, "percent_of_bound": result.percent_of_bound,
            "bits": verdict, "seed": seed, "stalls": stalls, "drop": drop, "wqes": result.wqes, "counters": result.counters,
            "host_ops": result.host_ops, "host_bytes": result.host_bytes,
        }  # fmt: skip
        console = _console(json_out)
        table = Table(title=f"{collective} {made.op} on {device} by {result.algorithm}")
        for column in ("ranks", "bytes", "dtype", "cycles", "bound", "algbw B/cycle", "busbw B/cycle", "% of bound", "bits"):
            table.add_column(column, justify="left" if column in ("dtype", "bits") else "right")
        table.add_row(
            str(ranks), str(result.nbytes), name, "–" if result.cycles is None else str(result.cycles), str(result.bound_cycles),
            _figure(result.algbw), _figure(result.busbw), _figure(result.percent_of_bound, 1), verdict,
        )  # fmt: skip
        console.print(table)
        if result.host_ops:
            console.print(f"by the host: {result.host_ops} reductions, {result.host_bytes} bytes: near-memory compute does not have {made.op} of {name}")
        if waves:
            console.print(f"waves: {waves}", highlight=False, soft_wrap=True)
        if pcap:
            console.print(f"capture: {pcap}", highlight=False, soft_wrap=True)
        if json_out:
            _emit(json_out, json.dumps(row, indent=1))
        if wrong:
            raise HcclError(f"bits differ: {wrong[0]} ({len(wrong)} rank(s) differ)")
        if output is not None:
            io.write_ranks(output, result.outputs)


def _integral(factor: float, dtype: str) -> float | int:
    return int(factor) if DTYPES[dtype].kind in ("int", "uint") and factor == int(factor) else factor


def _count_of(collective: str, given: list[Any], ranks: int) -> int:
    """Elements of a block, where blocks are even."""
    return given[0].size // ranks if collective in ("reduce_scatter", "scatter", "all_to_all") else given[0].size


def _plan_of(
    params: SystemParams, collective: str, ranks: int, count: int, dtype: str, op: str, in_place: bool, root: int, splits: str | None,
    algorithm: str | None, groups: str | None, fixed_order: bool,
) -> Plan:  # fmt: skip
    """The plan that the options ask for, proved."""
    sizes = tuple(x for row in _rows("--splits", splits) for x in row)
    if sizes and collective not in SPLIT:
        raise UsageError(f"--splits with {collective}; expected one of {', '.join(c for c in SPLIT if c in NAMED)}")
    if sizes and collective in MATRIX and len(sizes) != ranks * ranks:
        raise UsageError(f"--splits {splits}: {len(sizes)} sizes; expected {ranks} rows of {ranks}")
    return make_plan(
        params, collective, ranks, 0 if sizes else count, dtype, op if collective in REDUCING else "", in_place, root, sizes, algorithm,
        _rows("--groups", groups) or None, fixed_order,
    ).plan  # fmt: skip


def _collective(device: str, params: SystemParams, options: dict[str, Any], plan: Plan, given: list[Any], asked: dict[str, Any]) -> Result:
    name, n = plan.collective, plan.ranks
    send: list[Any] = [x.copy() for x in given]
    if plan.in_place and name in ("all_gather", "gather"):
        for r in range(n):
            if name == "all_gather" or r == plan.root:
                sizes = [b.length // plan.itemsize for b in plan.layout.outputs[r]]
                whole = np.zeros(sum(sizes), given[r].dtype)
                whole[sum(sizes[:r]) :][: sizes[r]] = given[r]
                send[r] = whole
    if plan.in_place and name == "broadcast":
        send = [x.copy() if r == plan.root else np.zeros_like(given[plan.root]) for r, x in enumerate(send)]
    kw: dict[str, Any] = asked | {"dtype": plan.dtype}
    kw |= {"root": plan.root} if name in ROOTED else {}
    kw |= {} if name == "barrier" else {"in_place": plan.in_place}
    if plan.splits:
        rows = [list(plan.splits[r * n : (r + 1) * n]) for r in range(n)] if name in MATRIX else list(plan.splits)
        kw |= {"send_splits" if name in MATRIX else "splits": rows}
        name += "_v"
    with open_device(device, params, **options) as d, Communicator(d) as comm:
        if name == "barrier":
            return comm.barrier(deadline=kw["deadline"], algorithm=kw["algorithm"])
        result: Result = getattr(comm, name)(send, **kw)
        return result


@app.command()
def plan(
    collective: Collective,
    ranks: Ranks = 4,
    nbytes: Annotated[int, typer.Option("--bytes", min=0, help="bytes of one rank's vector, or block")] = 1 << 20,
    dtype: DType = None,
    op: Op = "sum",
    algorithm: Algorithm = None,
    root: Root = 0,
    splits: Splits = None,
    groups: GroupsOf = None,
    fixed_order: Fixed = False,
    in_place: Annotated[bool, typer.Option("--in-place")] = False,
    config_name: Config = "tiny",
    json_out: JsonOut = None,
) -> None:
    """Build a plan, prove it, and show what each rank does."""
    with _errors():
        _choice("collective", collective, NAMED)
        _choice("op", op, OPS)
        name = dtype or "float32"
        _choice("dtype", name, tuple(DTYPES))
        if nbytes % itemsize(name):
            raise UsageError(f"--bytes {nbytes} is not a multiple of {itemsize(name)}, the size of {name}")
        params = _machine(config_name, ranks)
        _files(json_out=json_out)
        made = _plan_of(params, collective, ranks, nbytes // itemsize(name), name, op, in_place, root, splits, algorithm, groups, fixed_order)
        _show(made, _console(json_out), plan_bound(made, params))
        if json_out:
            _emit(json_out, made.to_json())


@app.command("prove")
def prove_command(file: Annotated[Path, typer.Argument(help="plan as `hccl plan --json` writes it")]) -> None:
    """Prove a plan in JSON: messages match, no deadlock, no hazard, each contribution once, every output written."""
    with _errors():
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"{file}: {getattr(e, 'strerror', None) or e}") from None
        try:
            made = Plan.from_json(text)
        except PlanError as e:
            raise UsageError(f"{file}: {e}") from None
        _show(made, _console(None), None)


def _show(made: Plan, console: Console, bound: int | None) -> None:
    report = prove(made)
    table = Table(title=f"{made.collective} {made.op} {made.dtype}, {made.count} elements ({made.nbytes} bytes), {made.algorithm}".replace("  ", " "))
    columns = ["rank", "send", "recv", "reduce", "copy", *(["scale"] if made.op == "premul_sum" else []), "sent_bytes"]
    for column in columns:
        table.add_column(column.replace("sent_bytes", "bytes sent"), justify="right")
    for row in made.summary():
        table.add_row(*(str(row[k]) for k in columns))
    console.print(table)
    console.print(f"channels {made.channels}, slots {made.slots} of {made.slot_bytes} bytes, scratch {made.scratch_bytes} bytes")
    if bound is not None:
        console.print(f"bound {bound} cycles")
    console.print(
        f"proved: {report.operations} operations, {report.messages} messages, at most {report.rq_depth} receives posted and "
        f"{report.sq_depth} sends outstanding on a queue pair"
    )
    if made.order:
        console.print(f"order: {made.order}", markup=False)
    if made.host_ops:
        console.print(f"by the host: {made.host_ops} reductions: near-memory compute does not have {made.op} of {made.dtype}")
    for start, end, text in report.expressions[:8]:
        console.print(f"bytes {start} … {end}: {text}", markup=False)
    if len(report.expressions) > 8:
        console.print(f"… and {len(report.expressions) - 8} more chunks")


def main() -> None:
    import hccl.cli_perf  # noqa: F401 (adds its command)

    app()


if __name__ == "__main__":
    from hccl.cli import main as command  # the module that commands are added to, not this copy of it

    command()
