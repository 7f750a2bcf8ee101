"""Two endpoints of a reliable connection and a link between them that loses, repeats, delays or damages packets.

There is no time: slots order the events, and timers run out only when nothing else can happen.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from golden.nic.packet import PacketError, build, parse
from golden.nic.requester import Meta, Packet
from golden.nic.transport import Endpoint
from spec.interfaces import TX_META

Fate = Callable[[int, int, Meta], Sequence[int]]


def perfect(sender: int, number: int, meta: Meta) -> Sequence[int]:
    """A link that loses nothing and keeps the order."""
    return (1,)


def exchange(
    a: Endpoint, b: Endpoint, fate: Fate = perfect, *, damage: Callable[[bytes, int], bytes] | None = None,
    log: list[tuple[int, Meta]] | None = None, limit: int = 1_000_000,
) -> int:
    """Move packets between two endpoints until neither has anything to do; the number of slots taken.

    Each slot either endpoint sends at most one packet. ``fate(sender, number, meta)`` says after how many slots
    each copy of the sender's `number`-th packet arrives: () lost, (1,) at once, (5,) late and overtaken, (1, 9)
    twice. Timers run out only when nothing else can happen. `damage` gets every frame and may return another:
    packets then pass through frames.

    Raises:
        RuntimeError: not finished after `limit` slots.
    """
    ends = (a, b)
    flying: list[tuple[int, int, int, Packet]] = []  # arrival, order, receiver
    sent = [0, 0]
    for slot in range(limit):
        for i, end in enumerate(ends):
            packet = end.next_packet()
            if packet is None:
                continue
            if log is not None:
                log.append((i, packet[0]))
            for delay in fate(i, sent[i], packet[0]):
                flying.append((slot + delay, sum(sent), 1 - i, packet))
            sent[i] += 1
        now = sorted((f for f in flying if f[0] <= slot), key=lambda f: f[:2])
        flying = [f for f in flying if f[0] > slot]
        for _, number, to, (meta, payload) in now:
            received: Packet | None = ({**meta, "src_node": ends[1 - to].node}, payload)
            if damage is not None:
                received = _through_frame(meta, payload, ends[1 - to].node, damage, number)
            if received is not None:
                ends[to].receive(*received)
            else:
                ends[to].dropped += 1
        if flying or now or any(e.replies or e.responder.responses or e.requester.ready for e in ends):
            continue
        if any(e.requester.waiting_rnr for e in ends):
            for e in ends:
                e.requester.rnr_expired()
        elif any(e.requester.busy for e in ends):
            for e in ends:
                e.timeout()
        else:
            return slot
    raise RuntimeError(f"not finished after {limit} slots")


def _through_frame(
    meta: Meta, payload: bytes, src: int, damage: Callable[[bytes, int], bytes], number: int
) -> Packet | None:
    fields = {k: v for k, v in meta.items() if k in TX_META.widths}
    try:
        return parse(damage(build(fields, payload, src), number))
    except PacketError:
        return None
