"""spec: records refuse what does not fit, parameters round-trip and refuse, registers and headers have their sizes."""
from __future__ import annotations

import ast
import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec import interfaces, packet, params, registers, wqe
from spec.fields import Record, field
from spec.packet import Opcode

SPEC = Path(__file__).parents[2] / "spec"
RECORDS = [r for m in (wqe, interfaces) for r in vars(m).values() if isinstance(r, Record)]
records = pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
configs = pytest.mark.parametrize("name", list(params.CONFIGS))


# Records

SMALL = Record("SMALL", 16, [field("a", 3), field("_r", 5), field("b", 8)])


def test_pack_puts_the_first_field_at_bit_0():
    assert SMALL.pack(a=5, b=0xAB) == 0xAB05
    assert SMALL.to_bytes({"a": 5}, b=0xAB) == b"\x05\xab"
    assert SMALL.unpack(0xABFD) == {"a": 5, "b": 0xAB}  # reserved bits are ignored
    assert SMALL.pack() == 0
    assert SMALL.nbytes == 2


def test_record_refusals():
    with pytest.raises(KeyError, match="SMALL has no field 'c'; it has a, b"):
        SMALL.pack(c=1)
    with pytest.raises(KeyError, match="SMALL has no field '_r'; it has a, b"):
        SMALL.pack(_r=1)
    with pytest.raises(ValueError, match="SMALL.a = 8 does not fit in 3 bits"):
        SMALL.pack(a=8)
    with pytest.raises(ValueError, match="SMALL.b = -1 does not fit in 8 bits"):
        SMALL.pack(b=-1)
    with pytest.raises(ValueError, match="SMALL: 3 bytes, expected 2"):
        SMALL.from_bytes(b"abc")
    with pytest.raises(ValueError, match="X: fields fill 7 bits, expected 8"):
        Record("X", 8, [field("a", 7)])
    with pytest.raises(ValueError, match="X: field 'a' is declared twice"):
        Record("X", 8, [field("a", 4), field("a", 4)])


@records
@given(data=st.data())
def test_records_round_trip(record, data):
    values = {
        f.name: data.draw(st.integers(0, (1 << f.width) - 1)) for f in record.fields if not f.name.startswith("_")
    }
    assert record.unpack(record.pack(values)) == values
    assert record.from_bytes(record.to_bytes(values)) == values


@records
def test_records_are_whole_bytes_and_ordered(record):
    assert record.bits % 8 == 0
    assert list(record.offsets.values()) == sorted(record.offsets.values())


def test_queue_entries_have_their_sizes():
    assert (wqe.WQE_BYTES, wqe.CQE_BYTES) == (64, 32)


@pytest.mark.parametrize(
    ("record", "name", "enum"),
    [
        (wqe.WQE, "opcode", wqe.Op), (wqe.WQE, "rop", wqe.ReduceOp), (wqe.WQE, "dtype", wqe.DType),
        (wqe.WQE, "cmp", wqe.Compare), (wqe.CQE, "status", wqe.Status), (wqe.CQE, "opcode", wqe.Op),
        (interfaces.NMC_REQUEST, "rop", wqe.ReduceOp), (interfaces.NMC_REQUEST, "dtype", wqe.DType),
        (interfaces.DONE, "status", wqe.Status), (interfaces.NIC_REQUEST, "opcode", wqe.Op),
        (interfaces.TX_META, "opcode", Opcode), (interfaces.TX_META, "syndrome", packet.Syndrome),
    ],
    ids=lambda v: getattr(v, "name", getattr(v, "__name__", v)),
)
def test_codes_fit_their_fields(record, name, enum):
    assert max(enum) < 1 << record.widths[name]


def test_flags_fit_and_do_not_overlap():
    assert sum(wqe.Flag) < 1 << wqe.WQE.widths["flags"]
    assert all(f & (f - 1) == 0 for f in wqe.Flag)


def test_every_dtype_has_a_size():
    assert set(wqe.DTYPE_BYTES) == set(wqe.DType)


# Parameters


@configs
def test_params_json_round_trip(name):
    p = params.config(name)
    back = params.SystemParams.from_json(p.to_json())
    assert back == p and hash(back) == hash(p)
    assert json.loads(p.to_json()) == p.to_dict()


def test_partial_json_takes_defaults():
    assert params.SystemParams.from_dict({}) == params.SystemParams()
    p = params.SystemParams.from_dict({"node": {"nic": {"mtu": 1024}}})
    assert p.node.nic == params.NicParams(mtu=1024)


def test_params_refuse_unknown_keys_at_every_level():
    with pytest.raises(ValueError, match=r"SystemParams: unknown key\(s\) color, nodse; known: nodes, node, link"):
        params.SystemParams.from_dict({"nodse": 4, "color": 1})
    with pytest.raises(ValueError, match=r"NicParams: unknown key\(s\) mut; known: qps, .*mtu"):
        params.SystemParams.from_dict({"node": {"nic": {"mut": 1024}}})
    with pytest.raises(TypeError, match="positional"):
        params.LinkParams(100)  # type: ignore[misc]


@pytest.mark.parametrize("value", [5, "node", None, [1]])
def test_params_refuse_a_value_where_a_group_belongs(value):
    with pytest.raises(ValueError, match="SystemParams.node = .*: expected an object of NodeParams"):
        params.SystemParams.from_dict({"node": value})


@pytest.mark.parametrize("text", ["[1]", "3", "null", '"tiny"'])
def test_params_refuse_json_that_is_no_object(text):
    with pytest.raises(ValueError, match="SystemParams: .*expected an object"):
        params.SystemParams.from_json(text)


def test_params_refuse_an_object_where_a_number_belongs():
    with pytest.raises(ValueError, match="nodes"):
        params.SystemParams.from_dict({"nodes": {"n": 4}})


def leaf_classes():
    return [
        params.MemParams, params.NmcParams, params.MeParams, params.NicParams, params.LinkParams, params.SwitchParams,
    ]


@pytest.mark.parametrize("cls", leaf_classes(), ids=lambda c: c.__name__)
@pytest.mark.parametrize("bad", [-1, 1 << 50, 2.5, True, "8", None])
def test_every_size_is_checked_and_named(cls, bad):
    for f in dataclasses.fields(cls):
        with pytest.raises(ValueError, match=rf"{cls.__name__}\.{f.name} = .*expected"):
            cls(**{f.name: bad})


def test_params_are_frozen_and_replace_checks():
    p = params.NicParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.mtu = 256  # type: ignore[misc]
    assert p.replace(mtu=256).mtu == 256
    with pytest.raises(ValueError, match=r"NicParams.mtu = 1500: expected one of \(256, 512, 1024, 2048, 4096\)"):
        p.replace(mtu=1500)
    with pytest.raises(ValueError, match="qps = 12: expected a power of two"):
        p.replace(qps=12)
    with pytest.raises(ValueError, match="rx_buffer_flits = 64: expected room for two packets of 4096 B"):
        p.replace(rx_buffer_flits=64)
    with pytest.raises(ValueError, match="does not fit in 16 address bits"):
        params.MemParams(addr_width=16)


def test_unknown_configuration_lists_the_known():
    with pytest.raises(ValueError, match="unknown configuration 'huge'; known: tiny, small, mtia300"):
        params.config("huge")


# Registers

LARGEST = params.NodeParams(
    me=params.MeParams(queues=64, window=256), nic=params.NicParams(qps=1 << 16, mrs=512, sq_depth=2, rq_depth=2)
)
NODES = {**{n: p.node for n, p in params.CONFIGS.items()}, "largest": LARGEST}
nodes = pytest.mark.parametrize("node", list(NODES.values()), ids=list(NODES))


@nodes
def test_registers_do_not_overlap(node):
    seen: dict[int, str] = {}
    for r in registers.node_registers(node):
        for i in range(r.count):
            at = r.offset + i * r.stride
            assert at % 4 == 0 and at not in seen, (r.name, i, seen.get(at))
            seen[at] = r.name


@nodes
def test_registers_are_well_formed(node):
    regs = registers.node_registers(node)
    assert len({r.name for r in regs}) == len(regs)
    for r in regs:
        assert r.access in ("rw", "ro", "wo", "w1") and r.doc and 0 < r.width <= 32
        assert 0 <= r.reset < 1 << r.width
        assert (r.stride > 0) == (r.count > 1 or r.stride > 0)
        assert registers.address(node, r.name) == r.offset
        assert registers.address(node, r.name, r.count - 1) == r.offset + (r.count - 1) * r.stride


def test_more_regions_than_the_map_holds_are_refused():
    with pytest.raises(ValueError, match="NicParams.mrs = 1024: expected a power of two from 2 to 512"):
        params.NicParams(mrs=1024)


def test_register_refusals():
    node = params.config("tiny").node
    with pytest.raises(KeyError, match="no register 'wq_tial'; known: id, version"):
        registers.address(node, "wq_tial")
    with pytest.raises(IndexError, match="register wq_tail: copy 4 of 4"):
        registers.address(node, "wq_tail", 4)
    with pytest.raises(IndexError, match="copy -1"):
        registers.address(node, "id", -1)


def test_register_fields_hold_their_enums():
    regs = {r.name: r for r in registers.node_registers(params.config("tiny").node)}
    assert max(registers.QpState) < 1 << regs["qp_state"].width
    assert sum(registers.Access) < 1 << regs["mr_access"].width
    assert registers.ID_VALUE.to_bytes(4, "big") == b"TWNY"


# Packets


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        (packet.ETH, packet.ETH_BYTES), (packet.IPV4, packet.IP_BYTES), (packet.UDP, packet.UDP_BYTES),
        (packet.BTH, packet.BTH_BYTES), (packet.RETH, packet.RETH_BYTES), (packet.AETH, packet.AETH_BYTES),
        (packet.IMM, packet.IMM_BYTES),
    ],
    ids=["eth", "ipv4", "udp", "bth", "reth", "aeth", "imm"],
)
def test_headers_fill_their_bytes(fields, size):
    assert sum(w for _, w in fields) == 8 * size
    assert len({n for n, _ in fields}) == len(fields)


@pytest.mark.parametrize(
    ("opcode", "size"),
    [
        (Opcode.SEND_FIRST, 54), (Opcode.SEND_MIDDLE, 54), (Opcode.SEND_LAST, 54), (Opcode.SEND_LAST_IMM, 58),
        (Opcode.SEND_ONLY, 54), (Opcode.SEND_ONLY_IMM, 58), (Opcode.WRITE_FIRST, 70), (Opcode.WRITE_MIDDLE, 54),
        (Opcode.WRITE_LAST, 54), (Opcode.WRITE_LAST_IMM, 58), (Opcode.WRITE_ONLY, 70), (Opcode.WRITE_ONLY_IMM, 74),
        (Opcode.READ_REQUEST, 70), (Opcode.READ_RESPONSE_FIRST, 58), (Opcode.READ_RESPONSE_MIDDLE, 54),
        (Opcode.READ_RESPONSE_LAST, 58), (Opcode.READ_RESPONSE_ONLY, 58), (Opcode.ACK, 58),
    ],
)
def test_header_sizes_by_opcode(opcode, size):
    assert packet.header_bytes(opcode) == size


def test_opcodes_are_all_of_reliable_connection():
    assert sorted(Opcode) == list(range(0x12))


@pytest.mark.parametrize(("payload", "frame"), [(0, 58), (1, 62), (4, 62), (5, 66), (4096, 4154)])
def test_frame_pads_to_four_bytes(payload, frame):
    assert packet.frame_bytes(Opcode.WRITE_MIDDLE, payload) == frame


def test_wire_overhead_is_82_bytes_a_full_packet():
    for mtu in packet.MTUS:
        assert packet.wire_bytes(Opcode.WRITE_MIDDLE, mtu) - mtu == 82
    assert 4096 / packet.wire_bytes(Opcode.WRITE_MIDDLE, 4096) == pytest.approx(0.980, abs=5e-4)
    assert packet.wire_bytes(Opcode.SEND_MIDDLE, 0) == 60 + 24  # Ethernet's shortest frame


@given(st.integers(0, 1 << 20), st.sampled_from(packet.MTUS))
def test_segments_cover_the_message(length, mtu):
    parts = packet.segment(length, mtu)
    assert sum(parts) == length and parts
    assert all(p == mtu for p in parts[:-1])
    assert length == 0 or 0 < parts[-1] <= mtu
    assert len(parts) == max(1, -(-length // mtu))


# The room itself


def test_spec_imports_only_the_standard_library_and_itself():
    for path in sorted(SPEC.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
            for name in names:
                root = name.split(".")[0]
                assert root == "spec" or root in sys.stdlib_module_names, f"{path.name} imports {name}"
