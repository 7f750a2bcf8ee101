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
from hccl.buffers import itemsize, to_bytes
from hccl.communicator import Communicator, Result, make_plan, plan_bound
from hccl.devices import KINDS, open_device
from hccl.errors import HcclError, PlanError, UsageError
from hccl.plan import DTYPES, OPS, Plan
from hccl.proof import prove
from hccl.reference import ring_all_reduce
from spec.params import SystemParams, config

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
COLLECTIVES = ("all_reduce",)

Collective = Annotated[str, typer.Argument(help=f"one of {', '.join(COLLECTIVES)}")]
Ranks = Annotated[int, typer.Option("--ranks", "-n", min=1, max=64, help="ranks, one per node")]
DType = Annotated[str | None, typer.Option(help=f"element type: {', '.join(DTYPES)}; inputs are converted to it")]
Op = Annotated[str, typer.Option(help=f"reduction: {', '.join(OPS)}")]
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


def _inputs(
    path: str | None, ranks: int, dtype: str | None, count: int | None, seed: int, most: int
) -> tuple[list[Any], str]:  # fmt: skip
    if path is not None:
        return io.read_ranks(path, ranks, dtype, count)
    dtype, count = dtype or "float32", 1024 if count is None else count
    _choice("dtype", dtype, tuple(DTYPES))
    if count * itemsize(dtype) > most:
        raise UsageError(f"--count {count}: {count * itemsize(dtype)} bytes of {dtype} on every rank; expected at most MemParams.size_bytes = {most}")
    rng = np.random.default_rng(seed)
    if dtype == "int32":
        return [rng.integers(-(1 << 31), 1 << 31, count).astype(np.int32) for _ in range(ranks)], dtype
    data = [rng.standard_normal(count).astype(np.float32) for _ in range(ranks)]
    return [io.convert(x, "float32", dtype, f"rank {r}") for r, x in enumerate(data)], dtype


def _differences(result: Result, expected: list[bytes]) -> list[str]:
    size = itemsize(result.dtype)
    out = []
    for r, (got, want) in enumerate(zip(result.outputs, expected, strict=True)):
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
    count: Annotated[int | None, typer.Option(min=0, help="elements per rank; without --input: of random data (1024)")] = None,
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
        _choice("collective", collective, COLLECTIVES)
        _choice("op", op, OPS)
        _choice("device", device, KINDS)
        params = _machine(config_name, ranks)
        if device == "golden" and waves:
            raise UsageError("device golden has no waves; expected --device rtl with --waves")
        if device == "golden" and (stalls or drop):
            raise UsageError("device golden has no stalls and no loss; expected --device rtl with --stalls or --drop")
        _files(json_out=json_out, input=input, output=output, waves=waves, pcap=pcap)
        data, name = _inputs(input, ranks, dtype, count, seed, params.node.mem.size_bytes)
        options: dict[str, Any] = {"seed": seed, "stalls": stalls, "faults": {"drop": drop} if drop else None, "waves": waves}
        options = {**({} if device == "golden" else options), "pcap": pcap}
        result = _collective(device, params, options, data, name, op, in_place, deadline)
        verdict, wrong = "not checked", []
        if check:
            expected = ring_all_reduce([to_bytes(x) for x in data], name, op).tobytes()
            wrong = _differences(result, [expected] * ranks)
            if device != "golden":
                golden = _collective("golden", params, {}, data, name, op, in_place, None)
                wrong += _differences(result, [to_bytes(o).tobytes() for o in golden.outputs])
            verdict = "differ" if wrong else "equal"
        row = {
            "collective": collective, "device": device, "ranks": ranks, "op": op, "dtype": name, "count": result.count,
            "bytes": result.nbytes, "cycles": result.cycles, "bound_cycles": result.bound_cycles, "algbw": result.algbw,
            "busbw": result.busbw, "percent_of_bound": result.percent_of_bound, "bits": verdict, "seed": seed,
            "stalls": stalls, "drop": drop, "wqes": result.wqes, "counters": result.counters,
        }  # fmt: skip
        console = _console(json_out)
        table = Table(title=f"{collective} {op} on {device}")
        for column in ("ranks", "bytes", "dtype", "cycles", "bound", "algbw B/cycle", "busbw B/cycle", "% of bound", "bits"):
            table.add_column(column, justify="left" if column in ("dtype", "bits") else "right")
        table.add_row(
            str(ranks), str(result.nbytes), name, "–" if result.cycles is None else str(result.cycles), str(result.bound_cycles),
            _figure(result.algbw), _figure(result.busbw), _figure(result.percent_of_bound, 1), verdict,
        )  # fmt: skip
        console.print(table)
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


def _collective(
    device: str, params: SystemParams, options: dict[str, Any], data: list[Any], dtype: str, op: str, in_place: bool,
    deadline: int | None,
) -> Result:  # fmt: skip
    with open_device(device, params, **options) as d, Communicator(d, deadline=deadline) as comm:
        return comm.all_reduce([x.copy() for x in data], dtype=dtype, op=op, in_place=in_place)


@app.command()
def plan(
    collective: Collective,
    ranks: Ranks = 4,
    nbytes: Annotated[int, typer.Option("--bytes", min=0, help="bytes of one rank's vector")] = 1 << 20,
    dtype: DType = None,
    op: Op = "sum",
    in_place: Annotated[bool, typer.Option("--in-place")] = False,
    config_name: Config = "tiny",
    json_out: JsonOut = None,
) -> None:
    """Build a plan, prove it, and show what each rank does."""
    with _errors():
        _choice("collective", collective, COLLECTIVES)
        _choice("op", op, OPS)
        name = dtype or "float32"
        _choice("dtype", name, tuple(DTYPES))
        if nbytes % itemsize(name):
            raise UsageError(f"--bytes {nbytes} is not a multiple of {itemsize(name)}, the size of {name}")
        params = _machine(config_name, ranks)
        _files(json_out=json_out)
        made = make_plan(params, ranks, nbytes // itemsize(name), name, op, in_place)
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
    table = Table(title=f"{made.collective} {made.op} {made.dtype}, {made.count} elements ({made.nbytes} bytes), {made.algorithm}")
    for column in ("rank", "send", "recv", "reduce", "copy", "bytes sent"):
        table.add_column(column, justify="right")
    for row in made.summary():
        table.add_row(*(str(row[k]) for k in ("rank", "send", "recv", "reduce", "copy", "sent_bytes")))
    console.print(table)
    console.print(f"channels {made.channels}, slots {made.slots} of {made.slot_bytes} bytes, scratch {made.scratch_bytes} bytes")
    if bound is not None:
        console.print(f"bound {bound} cycles")
    console.print(
        f"proved: {report.operations} operations, {report.messages} messages, at most {report.rq_depth} receives posted and "
        f"{report.sq_depth} sends outstanding on a queue pair"
    )
    for start, end, text in report.expressions[:8]:
        console.print(f"bytes {start} … {end}: {text}", markup=False)
    if len(report.expressions) > 8:
        console.print(f"… and {len(report.expressions) - 8} more chunks")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
