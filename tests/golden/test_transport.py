"""The reliable connection under loss, repetition, reordering and damage; against the functional system."""
from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden.chip.system import SystemStalled
from golden.mem.memory import Memory, Region, RegionTable
from golden.net.exchange import exchange, perfect
from golden.nic.transport import Completion, Endpoint, Request
from spec.packet import Opcode, Syndrome
from spec.params import NicParams, NodeParams, SystemParams, config
from spec.registers import Access
from spec.wqe import Op, Status
from tests.golden.driver import Driver, recv, send, write

KEY = 0x120
SIZE = 1 << 19
OK, FLUSH = Status.SUCCESS, Status.WR_FLUSH_ERR
PARAMS = NicParams(mtu=256, window=8, ack_every=4)
WRAP = 0xFFFFFD
SOURCE = np.random.default_rng(5).integers(1, 256, SIZE, np.uint8)


def endpoint(node: int, params: NicParams = PARAMS, *, psn: int = WRAP, **region) -> Endpoint:
    table = RegionTable(params.mrs)
    table.regions[0] = Region(**{"base": 0, "size": SIZE, "key": KEY, "access": 7, **region})
    return Endpoint(
        params, Memory(SIZE), table, node=node, qpn=10 + node, dest_node=1 - node, dest_qp=11 - node, sq_psn=psn,
        rq_psn=psn,
    )


def connection(params: NicParams = PARAMS, psn: int = WRAP, **region) -> tuple[Endpoint, Endpoint]:
    a, b = endpoint(0, params, psn=psn), endpoint(1, params, psn=psn, **region)
    a.memory.data[:] = SOURCE
    return a, b


def request(tag: int, op: Op, length: int, laddr: int = 0, raddr: int = 0, **kw: int) -> Request:
    return Request(tag=tag, op=op, length=length, laddr=laddr, raddr=raddr, **{"lkey": KEY, "rkey": KEY, **kw})


def post_messages(a: Endpoint, b: Endpoint, messages: list[tuple[Op, int]]) -> list[tuple[int, int, int]]:
    """Post messages to disjoint destinations, a RECV for each that needs one; (source, destination, length) of each."""
    places = []
    for i, (op, n) in enumerate(messages):
        src, dst = 7 * i, 4096 * i + 3
        a.post(request(i, op, n, src, dst, imm=i + 100))
        if op != Op.WRITE:
            b.post(request(i, Op.RECV, n, dst if op in (Op.SEND, Op.SEND_IMM) else 0))
        places.append((src, dst, n))
    return places


def recv_completions(messages: list[tuple[Op, int]]) -> list[Completion]:
    return [
        Completion(tag=i, status=OK, byte_len=n, imm=i + 100 if op in (Op.SEND_IMM, Op.WRITE_IMM) else 0)
        for i, (op, n) in enumerate(messages) if op != Op.WRITE
    ]


def expect_exact(a: Endpoint, b: Endpoint, messages: list[tuple[Op, int]], places: list[tuple[int, int, int]]) -> None:
    """All delivered once, in order, nothing else touched, nothing left."""
    sent, got = a.drain()[0], b.drain()[1]
    assert sent == [Completion(tag=i, status=OK, byte_len=n) for i, (_, n) in enumerate(messages)]
    assert got == recv_completions(messages)
    want = np.zeros(SIZE, np.uint8)
    for src, dst, n in places:
        want[dst : dst + n] = a.memory.data[src : src + n]
    assert np.array_equal(b.memory.data, want)
    assert b.responder.executed == sum(max(1, -(-n // PARAMS.mtu)) for _, n in messages)
    assert a.requester.psn == a.requester.una == b.responder.psn and not a.requester.window
    assert b.responder.msn == len(messages)


MESSAGES = st.lists(
    st.tuples(st.sampled_from([Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM]),
              st.sampled_from([0, 1, 255, 256, 257, 512, 3 * 256 + 5, 2048])), min_size=1, max_size=12)


def fates(script: list[tuple[int, ...]]):
    """The n-th packet of either side meets the n-th entry of the script; those after it arrive."""
    return lambda sender, number, meta: script[2 * number + sender] if 2 * number + sender < len(script) else (1,)


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 512, 3 * 256 + 5])
@pytest.mark.parametrize("op", [Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM])
def test_message_sizes(op, length):
    a, b = connection()
    messages = [(op, length)] * 3
    places = post_messages(a, b, messages)
    log: list = []
    exchange(a, b, log=log)
    expect_exact(a, b, messages, places)
    data = [m for i, m in log if i == 0]
    assert len(data) == 3 * max(1, -(-length // 256)) and [m["psn"] for m in data] == [
        (WRAP + i) & 0xFFFFFF for i in range(len(data))]
    assert all(m["ack_req"] for m in data if Opcode(m["opcode"]).name.split("_")[1] in ("LAST", "ONLY"))
    assert a.requester.retransmits == b.responder.duplicates == b.responder.naks == 0


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MESSAGES, st.lists(st.sampled_from([(1,), (1,), (1,), (), (1, 1), (4,), (9, 2), (30,)]), max_size=60),
       st.integers(0, 0xFFFFFF))
def test_exactly_once_in_order_or_the_right_error(messages, script, psn):
    a, b = connection(PARAMS, psn)
    places = post_messages(a, b, messages)
    exchange(a, b, fates(script))
    if not a.requester.failed:
        expect_exact(a, b, messages, places)
        return
    sent, got = a.drain()[0], b.drain()[1]
    good = [c for c in sent if c.status == OK]
    assert [c.tag for c in sent] == list(range(len(messages)))
    assert [c.status for c in sent] == [OK] * len(good) + [Status.RETRY_EXC_ERR] + [FLUSH] * (len(sent) - len(good) - 1)
    want = recv_completions(messages)
    done = [c for c in got if c.status == OK]
    assert done == want[: len(done)]
    assert {c.tag for c in good if messages[c.tag][0] != Op.WRITE} <= {c.tag for c in done}
    assert all(c.status == FLUSH for c in got[len(done) :])
    for src, dst, n in places[: len(good)]:
        assert np.array_equal(b.memory.data[dst : dst + n], a.memory.data[src : src + n])


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_random_link_with_damaged_frames(loss, seed):
    """Loss, repetition, reordering and flipped bits at once, both directions busy."""
    rng = np.random.default_rng(seed)
    a, b = connection(PARAMS.replace(window=64))
    messages = [(Op(rng.choice([Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM])), int(rng.integers(0, 1500))) for _ in range(40)]
    places = post_messages(a, b, messages)
    b.memory.data[SIZE // 2 :] = 1
    for i in range(20):
        b.post(request(i, Op.SEND, 600, SIZE // 2 + i))
        a.post(request(i, Op.RECV, 600, SIZE // 2 + 1024 * i))

    def fate(sender, number, meta):
        if rng.random() < loss:
            return ()
        return tuple(int(rng.integers(1, 6)) for _ in range(1 + (rng.random() < loss)))

    def damage(frame, number):
        if rng.random() >= loss / 2:
            return frame
        bad = bytearray(frame)
        bad[int(rng.integers(14, len(frame)))] ^= 1 << int(rng.integers(8))
        return bytes(bad)

    exchange(a, b, fate, damage=damage)
    assert b.requester.completions == [Completion(tag=i, status=OK, byte_len=600) for i in range(20)]
    b.memory.data[SIZE // 2 :] = 0
    assert [c.status for c in a.requester.completions] == [OK] * 40
    got = a.responder.completions
    assert got == [Completion(tag=i, status=OK, byte_len=600) for i in range(20)]
    a.responder.completions = []
    expect_exact(a, b, messages, places)
    assert a.requester.retransmits > 0 and b.responder.duplicates > 0


@pytest.mark.parametrize("lost", range(8))
def test_one_nak_per_gap_and_go_back(lost):
    a, b = connection()
    places = post_messages(a, b, [(Op.WRITE, 8 * 256)])
    log: list = []
    exchange(a, b, lambda s, n, m: () if (s, n) == (0, lost) else (1,), log=log)
    expect_exact(a, b, [(Op.WRITE, 8 * 256)], places)
    naks = [m for i, m in log if i == 1 and m["syndrome"] == Syndrome.NAK_PSN]
    if lost == 7:  # nothing after it shows the gap: the timer's case
        assert not naks and a.requester.retransmits == 1
    else:
        assert [m["psn"] for m in naks] == [(WRAP + lost) & 0xFFFFFF] and a.requester.retransmits == 1


def test_a_second_gap_gets_its_own_nak():
    a, b = connection(PARAMS.replace(window=32))
    places = post_messages(a, b, [(Op.WRITE, 16 * 256)])
    log: list = []
    exchange(a, b, lambda s, n, m: () if s == 0 and n in (2, 18) else (1,), log=log)
    expect_exact(a, b, [(Op.WRITE, 16 * 256)], places)
    sent = [m["psn"] - WRAP & 0xFFFFFF for i, m in log if i == 0]
    naks = [m["psn"] - WRAP & 0xFFFFFF for i, m in log if i == 1 and m["syndrome"] == Syndrome.NAK_PSN]
    assert naks == [sent[2], sent[18]] and sent[18] > sent[2] and a.requester.retransmits == 2


@pytest.mark.parametrize("region,kw", [
    ({"access": Access.LOCAL_WRITE | Access.REMOTE_READ}, {}), ({"base": 0x1001}, {}), ({"size": 0x12FF}, {}),
    ({"key": KEY + 16}, {}), ({}, {"rkey": KEY + 1}), ({"size": 0}, {}),
])
def test_write_without_the_right_is_refused_before_its_first_byte(region, kw):
    a, b = connection(PARAMS, **region)
    a.post(request(0, Op.WRITE, 0x300, 0, 0x1000, **kw))
    a.post(request(1, Op.WRITE, 1))
    b.post(request(2, Op.RECV, 0))
    exchange(a, b)
    assert a.drain()[0] == [Completion(tag=0, status=Status.REM_ACCESS_ERR, info=0x62), Completion(tag=1, status=FLUSH)]
    assert b.drain()[1] == [Completion(tag=2, status=FLUSH)] and not b.memory.data.any()


def test_refused_in_its_turn_or_when_posted():
    """A bad message waits for those before it; a bad RECV does not."""
    for bad, status, info in (
        (request(1, Op.SEND, 1, 5, lkey=1), Status.LOC_PROT_ERR, 5),
        (request(1, Op.WRITE, 2, SIZE - 1), Status.LOC_PROT_ERR, SIZE - 1),
        (request(1, Op.SET, 1), Status.LOC_QP_OP_ERR, 0), (request(1, Op.READ, 1, 5, lkey=1), Status.LOC_PROT_ERR, 5), (request(1, Op.SEND, (1 << 31) + 1), Status.LOC_LEN_ERR, 0),
    ):
        a, b = connection()
        a.post(request(0, Op.WRITE, 600, 0, 4096))
        a.post(bad)
        a.post(request(2, Op.WRITE, 1))
        a.post(request(7, Op.RECV, 1))
        exchange(a, b)
        sent, got = a.drain()
        assert [(c.tag, c.status, c.info) for c in sent] == [(0, OK, 0), (1, status, info), (2, FLUSH, 0)]
        assert got == [Completion(tag=7, status=FLUSH)] and b.memory.data[4096:4696].all()
    a, b = connection(access=Access.REMOTE_WRITE)
    b.post(request(0, Op.SEND, 1))
    b.post(request(1, Op.RECV, 1, 9))
    assert b.drain() == ([Completion(tag=0, status=FLUSH)], [Completion(tag=1, status=Status.LOC_PROT_ERR, info=9)])


def test_window_and_coalesced_acks():
    a, b = connection(PARAMS.replace(window=8, ack_every=4))
    a.post(request(0, Op.WRITE, 100 * 256))
    sent = [a.next_packet() for _ in range(9)]
    assert sent[8] is None and [p[0]["ack_req"] for p in sent[:8]] == [0, 0, 0, 1, 0, 0, 0, 1]
    a.requester.receive({"psn": (WRAP + 3) & 0xFFFFFF, "syndrome": Syndrome.ACK})
    assert [a.next_packet() is None for _ in range(5)] == [False] * 4 + [True]
    a, b = connection(PARAMS.replace(window=2, ack_every=1000))  # a window smaller than the ACK interval does not stall
    places = post_messages(a, b, [(Op.WRITE, 9 * 256)])
    log: list = []
    exchange(a, b, log=log)
    expect_exact(a, b, [(Op.WRITE, 9 * 256)], places)
    assert a.requester.retransmits == 0


def test_stale_and_foreign_acknowledgements_are_ignored():
    a, b = connection()
    places = post_messages(a, b, [(Op.WRITE, 3 * 256)])
    packets = [a.next_packet() for _ in range(3)]
    for psn in (WRAP - 1, WRAP - 9, WRAP + 3 & 0xFFFFFF, 0x7FFFFF):
        for syndrome in (Syndrome.ACK, Syndrome.NAK_ACCESS, Syndrome.RNR_NAK):
            a.requester.receive({"psn": psn, "syndrome": syndrome})
    a.requester.receive({"psn": WRAP - 1, "syndrome": Syndrome.NAK_PSN})
    assert not a.requester.failed and len(a.requester.window) == 3 and a.requester.cursor == 3
    foreign = {"src_node": 5, "dest_qp": 10, "opcode": Opcode.ACK, "psn": WRAP, "syndrome": Syndrome.NAK_ACCESS}
    a.receive(foreign, b"")
    a.receive({**foreign, "src_node": 1, "dest_qp": 9}, b"")
    assert a.dropped == 2 and not a.requester.failed
    for meta, payload in packets:
        b.receive({**meta, "src_node": 0}, payload)
    exchange(a, b)
    expect_exact(a, b, [(Op.WRITE, 3 * 256)], places)


def test_packet_of_an_old_connection_has_no_effect():
    _, b = connection()
    b.post(request(0, Op.RECV, 256, 0))
    stale = {"opcode": Opcode.SEND_ONLY, "psn": WRAP - 5, "ack_req": 1, "src_node": 0, "dest_qp": 11, "imm": 0}
    b.receive(stale, b"old")
    assert not b.memory.data.any() and b.responder.duplicates == 1 and len(b.responder.recvs) == 1
    assert b.next_packet()[0]["psn"] == WRAP - 1  # acknowledged again with the newest PSN


def test_retries_run_out_at_the_limit():
    for retries in (0, 3, 7):
        a, b = connection(PARAMS.replace(retries=retries))
        post_messages(a, b, [(Op.SEND, 1), (Op.WRITE, 1)])
        log: list = []
        exchange(a, b, lambda s, n, m: (), log=log)
        assert [c.status for c in a.drain()[0]] == [Status.RETRY_EXC_ERR, FLUSH]
        assert len([m for i, m in log if m["psn"] == WRAP]) == retries + 1
        a.post(request(9, Op.SEND, 1))
        a.post(request(8, Op.RECV, 1))
        assert a.drain() == ([Completion(tag=9, status=FLUSH)], [Completion(tag=8, status=FLUSH)])


def test_progress_gives_all_retries_back():
    a, b = connection(PARAMS.replace(retries=2))
    messages = [(Op.SEND, 100)] * 10
    places = post_messages(a, b, messages)
    tries: dict[int, int] = {}

    def fate(sender, number, meta):
        if sender == 1:
            return (1,)
        tries[meta["psn"]] = tries.get(meta["psn"], 0) + 1
        return () if tries[meta["psn"]] <= 2 and (meta["psn"] - WRAP) % 2 == 0 else (1,)

    exchange(a, b, fate)
    expect_exact(a, b, messages, places)


def test_rnr_waits_and_runs_out():
    a, b = connection(PARAMS.replace(rnr_retries=3))
    a.post(request(0, Op.SEND, 600))
    a.post(request(1, Op.SEND, 1))
    log: list = []
    exchange(a, b, log=log)
    assert [c.status for c in a.drain()[0]] == [Status.RNR_RETRY_EXC_ERR, FLUSH]
    answers = [m["syndrome"] >> 5 for i, m in log if i == 1]
    assert answers == [1] * 4  # the packets behind the refused one are not answered
    assert b.responder.executed == 0 and not b.memory.data.any()


def test_recv_posted_while_the_sender_waits():
    a, b = connection()
    messages = [(Op.WRITE_IMM, 600), (Op.SEND, 700)]
    src = [a.memory.data[:600].copy(), a.memory.data[:700].copy()]
    a.post(request(0, Op.WRITE_IMM, 600, 0, 5000, imm=100))
    a.post(request(1, Op.SEND, 700))
    count = 0

    def fate(sender, number, meta):
        nonlocal count
        if sender == 1 and meta["syndrome"] >> 5 == 1:
            count += 1
            if count % 3 == 0:
                b.post(request(count // 3 - 1, Op.RECV, 700, 9000))
        return (1,)

    exchange(a, b, fate)
    assert [c.status for c in a.drain()[0]] == [OK, OK]
    got = [(c.tag, c.status, c.byte_len, c.imm) for c in b.drain()[1]]
    assert got == [(0, OK, 600, 100), (1, OK, 700, 0)]
    assert np.array_equal(b.memory.data[5000:5600], src[0]) and np.array_equal(b.memory.data[9000:9700], src[1])
    assert count >= 6 and len(messages) == b.responder.msn


@pytest.mark.parametrize("first,opcode,payload,kw", [
    (None, Opcode.SEND_MIDDLE, 256, {}), (None, Opcode.WRITE_LAST, 5, {}), (None, Opcode.READ_REQUEST, 4, {}), (None, Opcode.READ_REQUEST, 0, {"dma_len": (1 << 31) + 1}),
    (Opcode.SEND_FIRST, Opcode.READ_REQUEST, 0, {}), (None, Opcode.READ_RESPONSE_MIDDLE + 0x20, 256, {}),
    (None, 0x17, 0, {}), (None, 0xC4, 0, {}), (None, Opcode.SEND_FIRST, 255, {}), (None, Opcode.SEND_ONLY, 257, {}),
    (None, Opcode.WRITE_ONLY, 5, {"dma_len": 6}), (None, Opcode.WRITE_ONLY, 5, {"dma_len": 4}),
    (None, Opcode.WRITE_FIRST, 256, {"dma_len": 256}),
    (Opcode.SEND_FIRST, Opcode.SEND_FIRST, 256, {}), (Opcode.SEND_FIRST, Opcode.SEND_ONLY, 1, {}),
    (Opcode.SEND_FIRST, Opcode.WRITE_MIDDLE, 256, {}), (Opcode.SEND_FIRST, Opcode.SEND_LAST, 0, {}),
    (Opcode.SEND_FIRST, Opcode.SEND_LAST, 257, {}), (Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, 255, {}),
    (Opcode.WRITE_FIRST, Opcode.WRITE_LAST, 100, {}), (Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, 256, {}),
    (Opcode.WRITE_FIRST, Opcode.SEND_LAST, 44, {}),
])
def test_invalid_requests(first, opcode, payload, kw):
    _, b = connection()
    b.post(request(0, Op.RECV, 4096, 0x8000))
    b.post(request(1, Op.SEND, 10))
    meta = {"src_node": 0, "dest_qp": 11, "psn": WRAP, "ack_req": 1, "va": 0, "rkey": KEY, "dma_len": payload, "imm": 0} | kw
    if first is not None:
        b.receive(meta | {"opcode": first, "dma_len": 300, "ack_req": 0}, bytes(256))
        meta["psn"] += 1
    b.receive(meta | {"opcode": opcode}, bytes(payload))
    reply = b.next_packet()[0]
    assert (reply["syndrome"], reply["psn"], reply["opcode"]) == (Syndrome.NAK_INVALID, meta["psn"], Opcode.ACK)
    assert b.drain() == ([Completion(tag=1, status=FLUSH)], [Completion(tag=0, status=FLUSH)])
    b.receive(meta | {"opcode": Opcode.SEND_ONLY}, b"x")
    assert b.next_packet() is None


@pytest.mark.parametrize("params", [PARAMS, NicParams()])
@settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_agrees_with_the_functional_system(params, data):
    """The same messages, some of them wrong, through packets and through the system: same bytes, same completions."""
    mtu = params.mtu
    sizes = st.sampled_from([0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 5])
    region = {"base": 0x1000, "size": data.draw(st.sampled_from([0x20000, 0x18000, 4 * mtu])), "key": KEY,
                  "access": data.draw(st.sampled_from([7, 7, 7, Access.LOCAL_WRITE, Access.REMOTE_WRITE]))}
    messages, recvs = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        op = data.draw(st.sampled_from([Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM]))
        dst = 0x1000 + data.draw(st.integers(0, 9)) * 0x2001
        messages.append((op, data.draw(sizes), dst, data.draw(st.sampled_from([KEY] * 8 + [KEY + 1]))))
        if op != Op.WRITE:
            recvs.append((data.draw(sizes | st.just(4 * mtu)), dst))
    recvs = recvs[: data.draw(st.integers(max(0, len(recvs) - 1), len(recvs)))]

    a, b = endpoint(0, params), endpoint(1, params, **region)
    d = Driver(SystemParams(nodes=2, node=NodeParams(nic=params)), seed=data.draw(st.integers(0, 99)))
    d.connect(0, 10, 1, 11, psn=WRAP)
    d.region(0, 0, 0, SIZE, KEY)
    d.region(1, 0, *[region[k] for k in ("base", "size", "key", "access")])
    source = np.random.default_rng(1).integers(1, 256, 0x8000, np.uint8)
    a.memory.write(0, source)
    d.s.mem_write(0, 0, source)
    for i, (n, dst) in enumerate(recvs):
        b.post(request(i, Op.RECV, n, dst))
        d.post(1, 0, recv(11, dst, n, lkey=KEY))
    with contextlib.suppress(SystemStalled):
        d.s.run(expire=False)  # all RECVs are posted before the first message, as above
    for i, (op, n, dst, key) in enumerate(messages):
        a.post(request(i, op, n, i, dst, imm=i, rkey=key))
        w = send(10, i, n, imm=i) | {"opcode": op} if op in (Op.SEND, Op.SEND_IMM) else write(10, i, dst, n, imm=i, rkey=key) | {"opcode": op}
        d.post(0, 0, w | {"lkey": KEY})
    exchange(a, b)
    d.s.run()
    for mine, node in ((a.requester.completions, 0), (b.responder.completions, 1)):
        theirs = [
            Completion(tag=c["wr_id"], status=Status(c["status"]), **{k: c[k] for k in ("byte_len", "imm", "info")})
            for c in d.poll(node)
        ]
        assert sorted(mine, key=lambda c: c.tag) == theirs
    assert np.array_equal(b.memory.data, d.s.mem_read(1, 0, SIZE))


def test_perfect_link_is_perfect():
    assert perfect(0, 5, {}) == (1,) and config("tiny").node.nic.mtu == 4096


READS = st.lists(
    st.tuples(st.sampled_from([Op.READ, Op.READ, Op.SEND, Op.WRITE_IMM]), st.sampled_from([0, 1, 255, 256, 257, 3 * 256 + 5, 2048])), min_size=1, max_size=8)


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(READS, st.lists(st.sampled_from([(1,), (1,), (1,), (), (1, 1), (4,), (9, 2), (30,)]), max_size=60), st.integers(0, 0xFFFFFF))
def test_reads_under_loss(messages, script, psn):
    """READ among other messages: data right, every message once, in order, whatever the link does."""
    a, b = connection(PARAMS.replace(retries=7), psn)
    b.memory.data[:] = SOURCE[::-1]
    want = a.memory.data.copy()
    got = b.memory.data.copy()
    for i, (op, n) in enumerate(messages):
        here, there = 4096 * i + 3, SIZE // 2 + 4096 * i + 7
        a.post(request(i, op, n, here, there, imm=i))
        if op == Op.READ:
            want[here : here + n] = b.memory.data[there : there + n]
        else:
            b.post(request(i, Op.RECV, n, there))
            got[there : there + n] = a.memory.data[here : here + n]
    exchange(a, b, fates(script))
    sent, received = a.drain()[0], b.drain()[1]
    good = [c for c in sent if c.status == OK]
    assert [c.tag for c in sent] == list(range(len(messages)))
    if a.requester.failed:
        assert [c.status for c in sent[len(good) :]] == [Status.RETRY_EXC_ERR] + [FLUSH] * (len(sent) - len(good) - 1)
        return
    assert len(good) == len(messages) and [c.byte_len for c in good] == [n for _, n in messages]
    assert [(c.tag, c.imm) for c in received] == [(i, i if op == Op.WRITE_IMM else 0) for i, (op, _) in enumerate(messages) if op != Op.READ]
    assert np.array_equal(a.memory.data, want) and np.array_equal(b.memory.data, got)
    assert b.responder.msn == len(messages) and a.requester.psn == a.requester.una == b.responder.psn


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_read_asks_anew_for_the_rest(mtu):
    """A lost response: what came stays, the rest is asked for with its own PSN, address and length; the request is carried out again."""
    a, b = connection(NicParams(mtu=mtu))
    a.post(request(0, Op.READ, 5 * mtu + 9, 64, 128))
    log: list = []
    exchange(a, b, lambda s, n, m: () if (s, n) == (1, 2) else (1,), log=log)
    asked = [m for i, m in log if i == 0]
    assert [(m["opcode"], (m["psn"] - WRAP) & 0xFFFFFF, m["va"], m["dma_len"]) for m in asked] == [
        (Opcode.READ_REQUEST, 0, 128, 5 * mtu + 9), (Opcode.READ_REQUEST, 2, 128 + 2 * mtu, 3 * mtu + 9)]
    assert a.drain()[0] == [Completion(tag=0, status=OK, byte_len=5 * mtu + 9)] and b.responder.duplicates == 1
    assert (b.responder.executed, b.responder.msn) == (1, 1)


@pytest.mark.parametrize("change", [{"opcode": Opcode.READ_RESPONSE_ONLY}, {"length": 255}, {"length": 0}])
def test_a_response_that_does_not_fit(change):
    a, _ = connection()
    a.post(request(0, Op.READ, 300, 64, 128))
    a.post(request(1, Op.SEND, 3))
    a.next_packet()
    assert a.next_packet() is None
    meta = {"opcode": Opcode.READ_RESPONSE_FIRST, "src_node": 1, "dest_qp": 10, "psn": WRAP, "length": 256, "syndrome": 0x1F, "msn": 1} | change
    a.receive(meta, bytes(meta["length"]))
    assert [c.status for c in a.drain()[0]] == [Status.BAD_RESP_ERR, FLUSH]
