"""RoCEv2 deframer: checks received frames whole and hands on packet descriptions and aligned payload.

Rules:
    * Store and forward: nothing of a frame is seen on `meta` or `data` before its last flit has passed every check below.
      A frame that fails one is dropped whole: `dropped` is high for one cycle, with the lowest `spec.packet.DropReason` that applies.
    * Checks: flit framing (`first`, `last`, contiguous `keep`, only a last flit short); ethertype; destination MAC and IPv4 address
      are this node's, source IPv4 address is a node's; IPv4 version, header length, protocol, no fragment, checksum; UDP
      destination port, length, checksum 0; lengths of frame, IPv4, UDP, opcode's headers and pad count agree, multiple of 4;
      BTH TVer 0 and P_Key 0xFFFF (one partition of full members); payload at most the MTU; iCRC.
    * Not checked, for switches and other senders may set them: source MAC, DSCP, ECN, TTL, ident, UDP source port, BTH M, FECN and
      BECN and the reserved bits, and the values of padding bytes (the iCRC covers those).
    * A frame of 58 bytes (IPv4 length 44) may come padded to 60 by Ethernet; any other byte beyond the IPv4 length is a LENGTH error.
    * An opcode not in `spec.packet.Opcode` is taken as BTH and payload and handed on: refusing it is the receiver's work.
      RETH, AETH and ImmDt fields that an opcode has not are 0 in its description.
    * A frame without its last flit is dropped (FRAMING) when the next first flit comes; flits outside a frame are dropped as a frame.
    * Full buffer: `link.ready` goes low until the consumer has taken enough. Space for a frame never depends on the same frame,
      so a consumer that goes on taking `meta` and `data` always sees `link` go on.

Members:
    node: In(16), own node number, constant while frames come.
    link: In stream of packet_layout(64). meta: Out stream of RX_META. data: Out stream of packet_layout(64): payload beats of
    the packets of `meta`, in order, none for a packet of length 0; bytes outside `keep` hold anything.
    dropped: Out(1), reason: Out(DropReason), valid while `dropped`.

Parameters: nic.mtu; nic.rx_buffer_flits, the buffer in payload beats (descriptions: an eighth of it, at least 16).

Latency: `meta` and the first beat of `data` 4 cycles after the frame's last flit. Interval: one flit per cycle on `link`, one
beat per cycle on `data`, frames back to back.

Structure: input register; then, in one stage, header checks, CRC register and alignment (payload starts at byte 54, 58, 70 or 74;
each flit completes the beat that the one before began) with a write at the speculative pointer; in the cycle after a frame's last
flit the rest of the payload is written and the pointer committed or put back. A frame's first flit completes no beat, so that
cycle is free even at full rate. The iCRC is compared with a residue constant per end position instead of being located.

Assumptions (each names the check that guards it):
    1. The consumer takes `meta` and `data` whatever happens on the node's own transmit side (test_stalls; else two full nodes could
       wait for each other).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.crc import CRC32
from rtl.common.layouts import layout, packet_layout
from rtl.nic import headers
from rtl.nic.headers import get
from spec import packet
from spec.interfaces import RX_META
from spec.packet import DropReason
from spec.params import NicParams

FLIT = packet.FLIT_BYTES
_IP = packet.ETH_BYTES
_UDP = _IP + packet.IP_BYTES
_BTH = _UDP + packet.UDP_BYTES
_EXT = packet.HEADER_BYTES  # RETH, AETH or ImmDt
_SHORTEST = packet.HEADER_BYTES + packet.ICRC_BYTES - packet.ETH_BYTES  # IPv4 length of the shortest packet
_MARGIN = 4  # beats and descriptions that may still be written after `link.ready` was high


class Deframer(Block):
    def __init__(self, nic: NicParams) -> None:
        self.nic = nic
        super().__init__({
            "node": In(16),
            "link": In(stream.Signature(packet_layout(FLIT))),
            "meta": Out(stream.Signature(layout(RX_META))),
            "data": Out(stream.Signature(packet_layout(FLIT))),
            "dropped": Out(1),
            "reason": Out(4),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        room = Signal()

        # 1. Input register. Bytes past the end are zeroed in steps of 4 from byte 2: where no frame ends, length checks refuse.
        a_valid, a_first, a_last, a_badkeep = (Signal(name=f"a_{n}") for n in ("valid", "first", "last", "badkeep"))
        a_data, a_end = Signal(8 * FLIT), Signal(6)
        keep = self.link.p.keep
        m.d.comb += self.link.ready.eq(room)
        m.d.sync += a_valid.eq(self.link.valid & room)
        with m.If(self.link.valid & room):
            sent = self.link.p.data
            kept = [sent[:16], *(Mux(keep[4 * k + 5], sent[32 * k + 16:32 * k + 48], 0) for k in range(15)), Mux(keep[63], sent[496:], 0)]
            m.d.sync += [
                a_first.eq(self.link.p.first),
                a_last.eq(self.link.p.last),
                a_badkeep.eq(~keep[0] | (keep & (keep + 1)[:FLIT]).any() | ~(self.link.p.last | keep[63])),
                a_end.eq(_top(keep)),
                a_data.eq(Cat(kept)),
            ]

        # 2. Header checks on a frame's first flit; position in the frame; CRC.
        in_frame, start, close, cut_short = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            start.eq(a_valid & (a_first | ~in_frame)),
            cut_short.eq(start & in_frame),
        ]
        m.d.sync += close.eq(a_valid & a_last)
        index = Signal(11)  # of the flit in `a`, if it does not start a frame; stays at its maximum
        with m.If(a_valid):
            m.d.sync += [in_frame.eq(~a_last), index.eq(Mux(start, 1, index + (index != 2047)))]

        early, has_reth, has_ext, length = self._check(m, a_data)
        bad_framing, bad_header, bad_length = Signal(), Signal(4), Signal()
        reth, aeth, imm, last_end = Signal(), Signal(), Signal(), Signal(6)
        size, left = Signal(16), Signal(7)  # payload bytes; beats of it not written yet
        info = Signal(data.StructLayout({"opcode": 8, "ack_req": 1, "se": 1, "src_node": 16, "dest_qp": 24, "psn": 24}))
        ext, ip_end = Signal(160), Signal(17)
        opcode = get(a_data, packet.BTH, _BTH, "opcode")
        ip_length = get(a_data, packet.IPV4, _IP, "length")
        end, now_end = Signal(17), Signal(17)
        m.d.comb += [
            now_end.eq(Mux(start, ip_length + (packet.ETH_BYTES - 1), ip_end)),
            end.eq(Cat(a_end, Mux(start, 0, index))),
        ]
        padded = start & (ip_length == _SHORTEST) & ((a_end == 58) | (a_end == 59))
        with m.If(a_valid):
            m.d.sync += [bad_length.eq((end != now_end) & ~padded), last_end.eq(a_end)]
        with m.If(start):
            m.d.sync += [
                bad_framing.eq(~a_first | a_badkeep),
                bad_header.eq(early),
                reth.eq(has_reth),
                aeth.eq(headers.is_in(opcode, packet.HAS_AETH)),
                imm.eq(headers.is_in(opcode, packet.HAS_IMM)),
                size.eq(length),
                ip_end.eq(ip_length + (packet.ETH_BYTES - 1)),
                info.opcode.eq(opcode),
                info.ack_req.eq(get(a_data, packet.BTH, _BTH, "ack_req")),
                info.se.eq(get(a_data, packet.BTH, _BTH, "se")),
                info.src_node.eq(get(a_data, packet.IPV4, _IP, "src") - packet.IPV4_BASE),
                info.dest_qp.eq(get(a_data, packet.BTH, _BTH, "dest_qp")),
                info.psn.eq(get(a_data, packet.BTH, _BTH, "psn")),
                ext.eq(a_data[8 * _EXT:]),
            ]
        with m.Elif(a_valid):
            m.d.sync += bad_framing.eq(bad_framing | a_badkeep)
            with m.If(index == 1):
                m.d.sync += ext[80:].eq(a_data)

        crc, state, before, seen = CRC32, Signal(32), Signal(32), Signal(8 * FLIT)
        m.d.comb += [
            before.eq(Mux(start, headers.icrc_start(crc), state)),
            seen.eq(headers.icrc_view(a_data, start)),
        ]
        with m.If(a_valid):
            m.d.sync += state.eq(crc.step(before, seen))

        # 3. Verdict, in the cycle after the last flit.
        reason, good = Signal(4), Signal()
        good_crc = Cat(state == crc.residue(62 - 4 * k) for k in range(16)).bit_select(last_end[2:], 1)
        with m.If(bad_framing):
            m.d.comb += reason.eq(DropReason.FRAMING)
        with m.Elif((bad_header != 0) & (bad_header < DropReason.LENGTH)):
            m.d.comb += reason.eq(bad_header)
        with m.Elif(bad_length):
            m.d.comb += reason.eq(DropReason.LENGTH)
        with m.Elif(bad_header != 0):
            m.d.comb += reason.eq(bad_header)
        with m.Elif(~good_crc):
            m.d.comb += reason.eq(DropReason.ICRC)
        m.d.comb += good.eq(close & (reason == 0))
        m.d.sync += [self.dropped.eq(cut_short | (close & ~good)), self.reason.eq(Mux(close, reason, DropReason.FRAMING))]

        # 4. Payload beats into the buffer: this flit's begin after the end of the one before, or that end alone (`close`).
        depth = self.nic.rx_buffer_flits
        beat_layout = data.StructLayout({"data": 8 * FLIT, "end": 6, "first": 1, "last": 1})
        m.submodules.beats = beats = Memory(shape=beat_layout, depth=depth, init=[])
        write, read = beats.write_port(), beats.read_port()
        p_data, wide = Signal(8 * FLIT), Signal(8 * FLIT)
        ahead, done, taken = (Signal(range(2 * depth), name=n) for n in ("ahead", "done", "taken"))
        opened = Signal()  # a beat of this frame was written
        with m.If(a_valid):
            m.d.sync += p_data.eq(a_data)

        def aligned(start_byte: int) -> Value:
            return Cat(p_data[8 * start_byte:], a_data[:8 * start_byte])

        m.d.comb += [
            wide.eq(Mux(reth, Mux(imm, aligned(10), aligned(6)), Mux(imm | aeth, aligned(58), aligned(54)))),
            write.en.eq((left != 0) & (close | (a_valid & ~start & ~(reth & (index == 1))))),
            write.addr.eq(ahead),
            write.data.data.eq(wide),
            write.data.end.eq(Mux(left == 1, size - 1, FLIT - 1)),
            write.data.first.eq(~opened),
            write.data.last.eq(left == 1),
        ]
        with m.If(write.en):
            m.d.sync += [ahead.eq(ahead + 1), left.eq(left - 1), opened.eq(1)]
        with m.If(start):
            m.d.sync += [opened.eq(0), left.eq(Mux(early == 0, (length + (FLIT - 1)) >> 6, 0))]
        with m.If(good):
            m.d.sync += done.eq(ahead + write.en)
        with m.Elif(close | cut_short):
            m.d.sync += ahead.eq(done)

        # 5. Buffer to `data`: the memory's read register is the output register.
        with m.If(read.en):
            m.d.sync += self.data.valid.eq(taken != done)
            with m.If(taken != done):
                m.d.sync += taken.eq(taken + 1)
        m.d.comb += [
            read.en.eq(~self.data.valid | self.data.ready),
            read.addr.eq(taken),
            self.data.p.data.eq(read.data.data),
            self.data.p.keep.eq((Const(2, FLIT + 1) << read.data.end) - 1),
            self.data.p.first.eq(read.data.first),
            self.data.p.last.eq(read.data.last),
        ]

        # 6. Descriptions, in the same way.
        entries = max(16, depth // 8)
        m.submodules.metas = metas = Memory(shape=layout(RX_META), depth=entries, init=[])
        meta_write, meta_read = metas.write_port(), metas.read_port()
        meta_in, meta_out = Signal(range(2 * entries)), Signal(range(2 * entries))
        m.d.comb += [
            meta_write.en.eq(good),
            meta_write.addr.eq(meta_in),
            meta_read.en.eq(~self.meta.valid | self.meta.ready),
            meta_read.addr.eq(meta_out),
            self.meta.p.eq(meta_read.data),
        ]
        self._describe(m, meta_write.data, info, size, ext, reth, aeth, imm)
        with m.If(good):
            m.d.sync += meta_in.eq(meta_in + 1)
        with m.If(meta_read.en):
            m.d.sync += self.meta.valid.eq(meta_out != meta_in)
            with m.If(meta_out != meta_in):
                m.d.sync += meta_out.eq(meta_out + 1)
        m.d.comb += room.eq(
            ((ahead - taken)[:len(ahead)] <= depth - _MARGIN) & ((meta_in - meta_out)[:len(meta_in)] <= entries - _MARGIN))
        return m

    def _check(self, m: Module, flit: Signal) -> tuple[Signal, Signal, Signal, Signal]:
        """(first header error or 0, has RETH, has 4 bytes more, payload bytes) by a frame's first flit."""
        def eth(name: str) -> Value:
            return get(flit, packet.ETH, 0, name)

        def ip(name: str) -> Value:
            return get(flit, packet.IPV4, _IP, name)

        def udp(name: str) -> Value:
            return get(flit, packet.UDP, _UDP, name)

        def bth(name: str) -> Value:
            return get(flit, packet.BTH, _BTH, name)

        has_reth, has_ext = Signal(), Signal()
        length, extra = Signal(16), Signal(6)
        source = Signal(32)
        m.d.comb += [
            has_reth.eq(headers.is_in(bth("opcode"), packet.HAS_RETH)),
            has_ext.eq(headers.is_in(bth("opcode"), packet.HAS_AETH | packet.HAS_IMM)),
            extra.eq(Cat(bth("pad"), has_ext, Const(0, 1), has_reth)),
            length.eq(ip("length") - _SHORTEST - extra),
            source.eq(ip("src") - packet.IPV4_BASE),
        ]
        words = [headers.reverse_bytes(flit[8 * at:8 * at + 16]) for at in range(_IP, _UDP, 2)]
        early = Signal(4)
        for reason, wrong in (
            (DropReason.ETHERTYPE, eth("ethertype") != packet.ETHERTYPE_IPV4),
            (DropReason.ADDRESS, (eth("dst") != headers.mac(self.node)) | (ip("dst") != headers.ipv4(self.node))
                | source[16:].any()),
            (DropReason.IP, (ip("version") != 4) | (ip("ihl") != 5) | (ip("proto") != packet.IP_PROTO_UDP)
                | ip("flags")[0] | ip("frag").any()),
            (DropReason.IP_CHECKSUM, headers.ones_sum(m, words) != 0xFFFF),
            (DropReason.UDP, (udp("dport") != packet.UDP_PORT_ROCE) | (udp("length") + packet.IP_BYTES != ip("length"))
                | udp("checksum").any()),
            (DropReason.LENGTH, (ip("length") < _SHORTEST + extra) | ip("length")[:2].any()),
            (DropReason.BTH, bth("tver").any() | (bth("pkey") != packet.PKEY)),
            (DropReason.OVERSIZE, length > self.nic.mtu),
        ):
            with m.If(wrong) if reason is DropReason.ETHERTYPE else m.Elif(wrong):
                m.d.comb += early.eq(reason)
        return early, has_reth, has_ext, length

    @staticmethod
    def _describe(m: Module, out, info, size, ext, reth, aeth, imm) -> None:
        """The description; fields that the opcode has not stay 0."""
        for name in ("opcode", "ack_req", "se", "src_node", "dest_qp", "psn"):
            m.d.comb += out[name].eq(info[name])
        m.d.comb += out.length.eq(size)
        with m.If(reth):
            m.d.comb += [
                out.va.eq(get(ext, packet.RETH, 0, "va")),
                out.rkey.eq(get(ext, packet.RETH, 0, "rkey")),
                out.dma_len.eq(get(ext, packet.RETH, 0, "length")),
            ]
        with m.If(aeth):
            m.d.comb += [out.syndrome.eq(get(ext, packet.AETH, 0, "syndrome")), out.msn.eq(get(ext, packet.AETH, 0, "msn"))]
        with m.If(imm):
            m.d.comb += out.imm.eq(Mux(reth, get(ext, packet.IMM, packet.RETH_BYTES, "imm"), get(ext, packet.IMM, 0, "imm")))


def _top(keep: Value) -> Value:
    """Index of the last set bit of a mask contiguous from bit 0: bit k is the parity of the mask at the multiples of 2^k."""
    width = len(keep)
    return Cat(Cat(keep[at] for at in range(1 << k, width, 1 << k)).xor() for k in range((width - 1).bit_length()))
