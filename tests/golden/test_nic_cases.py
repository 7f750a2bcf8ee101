"""What went wrong in other NICs, as small inputs: sequence numbers over the wrap, connections opened again, one kind of message after another."""
from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from golden.net.exchange import exchange
from golden.nic.transport import Completion, Endpoint, Request
from spec.packet import Opcode, Syndrome
from spec.params import config
from spec.registers import QpState
from spec.wqe import Op, Status
from tests.golden.driver import Driver, recv, send
from tests.golden.test_transport import KEY, PARAMS, SIZE, WRAP, connection, expect_exact, post_messages, request

OK = Status.SUCCESS
KINDS = (Op.SEND, Op.SEND_IMM, Op.WRITE, Op.WRITE_IMM, Op.READ)
HERE, THERE = 0x100, SIZE // 2


def put(a: Endpoint, b: Endpoint, tag: int, op: Op, n: int) -> np.ndarray:
    """One message of a, with its RECV; the bytes it moves."""
    here, there = HERE + 0x1000 * tag + tag, THERE + 0x1000 * tag + 5
    source = b.memory.data[there : there + n] if op == Op.READ else a.memory.data[here : here + n]
    a.post(request(tag, op, n, here, there, imm=tag))
    if op not in (Op.WRITE, Op.READ):
        b.post(request(tag, Op.RECV, n, there))
    return source.copy()


def moved(a: Endpoint, b: Endpoint, tag: int, op: Op, n: int) -> np.ndarray:
    here, there = HERE + 0x1000 * tag + tag, THERE + 0x1000 * tag + 5
    return a.memory.data[here : here + n] if op == Op.READ else b.memory.data[there : there + n]


@pytest.mark.parametrize("op", [Op.SEND, Op.WRITE, Op.READ])
@pytest.mark.parametrize("length", [255, 256, 257, 512, 3 * 256 + 5, 8192 + 1, 40 * 256])
def test_messages_longer_than_the_buffers(op, length):
    """More packets than a window and a buffer hold: every byte arrives, also when the window is sent twice."""
    a, b = connection()
    b.memory.data[THERE:] = 7
    want = put(a, b, 0, op, length)
    exchange(a, b, lambda s, n, m: () if (s, n) == (0, 0) else (1,))
    assert np.array_equal(moved(a, b, 0, op, length), want) and a.drain()[0] == [Completion(tag=0, status=OK, byte_len=length)]


def test_eight_messages_over_the_wrap():
    """From PSN 2^24 - 3: reordered, repeated, and an ACK of long ago: all delivered once."""
    a, b = connection(PARAMS.replace(retries=7), psn=0xFFFFFD)
    messages = [(Op.SEND, 100 + k) for k in range(8)]
    places = post_messages(a, b, messages)

    def fate(sender, number, meta):
        if sender == 0:
            return ((3,), (1,), (2, 6), (1,), (4, 5), (1,), (1, 1), (2,))[number % 8]
        a.requester.receive({"psn": WRAP - 4, "syndrome": int(Syndrome.ACK)})  # acknowledged before this connection began
        return (1, 7)

    exchange(a, b, fate)
    expect_exact(a, b, messages, places)
    assert a.requester.una == 5


@pytest.mark.parametrize("same", [False, True])
def test_closed_and_opened_again(same):
    """Messages of the new connection arrive, packets of the old one do nothing; also when only one side was reset before."""
    a, b = connection(psn=100)
    places = post_messages(a, b, [(Op.SEND, 300)])
    old = [a.next_packet() for _ in range(2)]
    a, b = connection(psn=0x700000)
    places = post_messages(a, b, [(Op.SEND, 300), (Op.WRITE, 5)])
    for meta, payload in old * (1 + same):
        b.receive({**meta, "src_node": 0}, payload)
    assert b.responder.executed == 0
    exchange(a, b)
    expect_exact(a, b, [(Op.SEND, 300), (Op.WRITE, 5)], places)


def test_one_side_reset():
    """The other side's messages end in RETRY_EXC_ERR, never in a hang; both opened again, all is well."""
    d = Driver(config("tiny").replace(nodes=2))
    d.connect(0, 3, 1, 4)
    d.s.write_reg(1, "qp_state", 4, QpState.RESET)
    d.post(0, 0, send(3, 0, 8), send(3, 0, 8))
    d.s.run()
    assert d.statuses(0) == [Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR]
    d.s.write_reg(0, "wq_reset", 0, 1)
    d.tails[0][0] = 0
    d.connect(0, 3, 1, 4, psn=0x123456)
    d.post(1, 0, recv(4, 0x100, 8))
    d.post(0, 0, send(3, 0, 8))
    d.s.run()
    assert d.statuses(0) == d.statuses(1) == [OK]


@pytest.mark.parametrize("first,second", list(product(KINDS, KINDS)), ids=lambda op: op.name)
def test_one_kind_after_another(first, second):
    """Every kind behind every other, at the sizes where a message changes its shape, with loss."""
    a, b = connection(PARAMS.replace(retries=7))
    b.memory.data[THERE:] = np.arange(SIZE - THERE).astype(np.uint8)
    sizes = (255, 256, 257, 0)
    messages = [(op, n) for n in sizes for op in (first, second)]
    want = [put(a, b, k, op, n) for k, (op, n) in enumerate(messages)]
    rng = np.random.default_rng(3)
    exchange(a, b, lambda s, n, m: () if rng.random() < 0.1 else (1,))
    assert [(c.tag, c.status, c.byte_len) for c in a.drain()[0]] == [(k, OK, n) for k, (_, n) in enumerate(messages)]
    for k, (op, n) in enumerate(messages):
        assert np.array_equal(moved(a, b, k, op, n), want[k]), (k, op, n)


def test_a_stale_acknowledge_gives_no_room():
    """ACKs repeated, late or of PSNs never sent open no window."""
    a, _ = connection()
    a.post(Request(tag=0, op=Op.WRITE, length=20 * 256, lkey=KEY, rkey=KEY))
    sent = [a.next_packet() for _ in range(8)]
    assert a.next_packet() is None
    first = sent[0][0]["psn"]
    for psn in (first - 1, first + 8, first + 100, first + (1 << 23), first - (1 << 22)):
        a.requester.receive({"psn": psn & 0xFFFFFF, "syndrome": int(Syndrome.ACK)})
        assert a.next_packet() is None
    for _ in range(3):
        a.requester.receive({"psn": (first + 1) & 0xFFFFFF, "syndrome": int(Syndrome.ACK)})
    assert [a.next_packet() is None for _ in range(3)] == [False, False, True]


def test_acknowledges_pass_while_the_window_is_full():
    """A queue pair that may send no message answers those it receives."""
    a, b = connection()
    a.post(request(0, Op.WRITE, 20 * 256))
    while a.next_packet() is not None:
        pass
    a.post(request(1, Op.RECV, 64, 0x9000))
    a.receive({"opcode": Opcode.SEND_ONLY, "psn": WRAP, "ack_req": 1, "src_node": 1, "dest_qp": 10, "va": 0, "rkey": 0, "dma_len": 0, "imm": 0}, b"hello")
    assert a.next_packet()[0]["syndrome"] == Syndrome.ACK and a.drain()[1][0].status == OK and b.node == 1
