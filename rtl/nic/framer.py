"""RoCEv2 framer: one Ethernet frame for each packet description and its payload, headers and invariant CRC made on the way.

Rules:
    * Each word on `meta` makes one frame: Ethernet, IPv4, UDP, BTH, then RETH, AETH or ImmDt as the opcode has them
      (`spec.packet`), payload, zeros up to a multiple of 4 bytes, iCRC. An opcode not in `spec.packet.Opcode` is framed as
      BTH and payload. Frames leave in the order of their descriptions.
    * Payload comes on `data`, byte 0 first, ``ceil(length / 64)`` beats; a packet of length 0 takes none. Beats are counted by
      `length`; bytes beyond it are not looked at, so they may hold anything.
    * Fixed values: DSCP and ECN 0 (no congestion control is modelled), ident 0 and DF set (RFC 6864: an atomic datagram needs no
      identification), TTL 64, UDP checksum 0 (allowed over IPv4; the iCRC covers what it would), UDP source port
      ``0xC000 | dest_qp[13:0]``, BTH M 1 (path migrated, as other senders have it), TVer 0, P_Key 0xFFFF, FECN and BECN 0.
    * iCRC: CRC-32 (`rtl.common.crc.CRC32`) over eight bytes of ones and the frame from the IPv4 header to the padding, with TOS,
      TTL, both checksums and BTH byte 4 taken as ones; sent least significant byte first.
    * Frames under Ethernet's 60 bytes are not padded: the MAC below the link does that.

Members:
    node: In(16), own node number: source MAC and IPv4 address; constant while a frame is made.
    meta: In stream of TX_META. data: In stream of packet_layout(64). link: Out stream of packet_layout(64).

Latency: 4 cycles from a description (with its first payload beat there) to the frame's first flit. A flit leaves 3 cycles
after the last payload beat it needs. Interval: one flit per cycle, ``ceil(frame / 64)`` cycles per frame, the next frame in the
next cycle. When payload is late the frame pauses (`link.valid` low inside a frame).

Structure: four registers in a row that move together whenever `link` can: description (first flit's header ready made), flit,
flit with the CRC register behind it, output. Payload sits at byte 54, 58, 70 or 74, so the 512-bit rotation has four settings.
`meta.ready` and `data.ready` follow `link.ready` in the same cycle.

Assumptions (each names the check that guards it):
    1. ``length`` is at most 4096 (any MTU); the IPv4 length field would hold up to 65,471 (test_mtu).
    2. `data` carries exactly the beats that the lengths on `meta` ask for (test_back_to_back compares every byte).
"""
from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from rtl.common.block import Block
from rtl.common.crc import CRC32
from rtl.common.layouts import layout, packet_layout
from rtl.nic import headers
from spec import packet
from spec.interfaces import TX_META

FLIT = packet.FLIT_BYTES
_SHIFTS = (packet.HEADER_BYTES, packet.HEADER_BYTES + 4, packet.HEADER_BYTES + 16 - FLIT, packet.HEADER_BYTES + 20 - FLIT)


class Framer(Block):
    def __init__(self) -> None:
        super().__init__({
            "node": In(16),
            "meta": In(stream.Signature(layout(TX_META))),
            "data": In(stream.Signature(packet_layout(FLIT))),
            "link": Out(stream.Signature(packet_layout(FLIT))),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        move = Signal()
        m.d.comb += move.eq(~self.link.valid | self.link.ready)

        # 1. Description: lengths, the first 74 bytes, and where payload and iCRC end.
        meta = self.meta.p
        has_reth, has_ext = Signal(), Signal()  # RETH; four bytes of AETH or ImmDt after it
        pad, ip_length, payload_end, crc_at = Signal(2), Signal(16), Signal(17), Signal(17)
        m.d.comb += [
            has_reth.eq(headers.is_in(meta.opcode, packet.HAS_RETH)),
            has_ext.eq(headers.is_in(meta.opcode, packet.HAS_AETH | packet.HAS_IMM)),
            pad.eq(-meta.length),
            payload_end.eq(meta.length + packet.HEADER_BYTES + Cat(Const(0, 2), has_ext, Const(0, 1), has_reth)),
            crc_at.eq(payload_end + pad),
            ip_length.eq(crc_at + (packet.ICRC_BYTES - packet.ETH_BYTES)),
        ]
        head = Signal(8 * (packet.HEADER_BYTES + 20))
        m.d.comb += head.eq(self._head(m, pad, ip_length, has_reth))

        held = Signal()  # a description is held
        reth, ext, first = Signal(), Signal(), Signal()  # of it; its first flit is next
        low = Signal(8 * FLIT)  # bytes of the next flit below the payload beat's first: header, or the last beat's end
        tail = Signal(80)  # header bytes 64 to 73
        flit, end_flit, crc_flit, last_flit = (Signal(11) for _ in range(4))
        end_byte, crc_word, beats = Signal(6), Signal(4), Signal(11)
        take_meta = Signal()
        m.d.comb += take_meta.eq(self.meta.valid & self.meta.ready)
        with m.If(take_meta):
            m.d.sync += [
                reth.eq(has_reth),
                ext.eq(has_ext),
                tail.eq(head[8 * FLIT:]),
                end_flit.eq(payload_end >> 6),
                end_byte.eq(payload_end),
                crc_flit.eq(crc_at >> 6),
                crc_word.eq(crc_at >> 2),
                last_flit.eq((crc_at + (packet.ICRC_BYTES - 1)) >> 6),
            ]

        # 2. Flit: header or end of the last beat, then payload; zeros from the payload's end on.
        take, go, fire, last = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            take.eq((beats != 0) & ~(first & reth)),
            go.eq(held & (~take | self.data.valid)),
            fire.eq(move & go),
            last.eq(flit == last_flit),
            self.data.ready.eq(move & held & take),
            self.meta.ready.eq(move & (~held | (go & last))),
        ]
        rotated, mixed = Signal(8 * FLIT), Signal(8 * FLIT)
        beat = self.data.p.data
        r54, r58, r6, r10 = (Cat(beat[8 * (FLIT - r):], beat[:8 * (FLIT - r)]) for r in _SHIFTS)
        m.d.comb += rotated.eq(Mux(reth, Mux(ext, r10, r6), Mux(ext, r58, r54)))
        whole = first & reth  # no payload in this flit

        def segment(start: int, end: int, from_low: Value) -> Value:
            return Mux(from_low, low[8 * start:8 * end], rotated[8 * start:8 * end])

        s54, s58, s6, s10 = _SHIFTS
        m.d.comb += mixed.eq(Cat(
            low[:8 * s6],
            segment(s6, s10, ~reth | ext | first),
            segment(s10, s54, ~reth | first),
            segment(s54, s58, Mux(reth, first, ext)),
            segment(s58, FLIT, whole),
        ))
        with m.If(take_meta):
            m.d.sync += [low.eq(head), first.eq(1), flit.eq(0), held.eq(1), beats.eq((meta.length + (FLIT - 1)) >> 6)]
        with m.Elif(fire):
            m.d.sync += [low.eq(Mux(whole, tail, rotated)), first.eq(0), flit.eq(flit + 1), held.eq(~last)]
            with m.If(take):
                m.d.sync += beats.eq(beats - 1)

        a_valid, a_first, a_last, a_crc, a_tail = (Signal() for _ in range(5))
        a_data, a_word = Signal(8 * FLIT), Signal(4)
        ones = Const((1 << 8 * FLIT) - 1, 8 * FLIT)
        cut = (ones << Cat(Const(0, 3), end_byte))[:8 * FLIT]
        with m.If(move):
            m.d.sync += a_valid.eq(go)
            with m.If(go):
                m.d.sync += [
                    a_data.eq(Mux(flit < end_flit, mixed, Mux(flit == end_flit, mixed & ~cut, 0))),
                    a_first.eq(first),
                    a_last.eq(last),
                    a_crc.eq(flit == crc_flit),
                    a_tail.eq(flit > crc_flit),  # nothing but the iCRC's second half
                    a_word.eq(crc_word),
                ]

        # 3. CRC register; it holds during a tail flit, which has no byte of the message.
        crc = CRC32
        state, before, seen = Signal(crc.width), Signal(crc.width), Signal(8 * FLIT)
        b_valid, b_first, b_last, b_crc, b_tail = (Signal() for _ in range(5))
        b_data, b_word = Signal(8 * FLIT), Signal(4)
        m.d.comb += [
            before.eq(Mux(a_first, headers.icrc_start(crc), state)),
            seen.eq(headers.icrc_view(a_data, a_first)),
        ]
        with m.If(move):
            m.d.sync += b_valid.eq(a_valid)
            with m.If(a_valid):
                m.d.sync += [
                    b_data.eq(a_data), b_first.eq(a_first), b_last.eq(a_last), b_crc.eq(a_crc), b_tail.eq(a_tail),
                    b_word.eq(a_word),
                ]
                with m.If(~a_tail):
                    m.d.sync += state.eq(crc.step(before, seen))

        # 4. The message ends at byte 4 * word + 2 of its flit; undo the zero bytes after it and put the CRC there.
        value = Signal(crc.width)
        m.d.comb += value.eq(crc.rewind(m, state, ~b_word, unit=4, always=2) ^ crc.xorout)
        placed = (Cat(Const(0, 16), value) << Cat(Const(0, 5), b_word))[:8 * FLIT]
        end_keep = (Const(1 << 6, 7) << Cat(Const(0, 2), b_word))[:FLIT] - 1  # 4 * word + 6 bytes
        keep = Mux(b_last, Mux(b_tail, 0b11, end_keep[:FLIT]), (1 << FLIT) - 1)
        with m.If(move):
            m.d.sync += self.link.valid.eq(b_valid)
            with m.If(b_valid):
                m.d.sync += [
                    self.link.p.data.eq(Mux(b_crc, b_data | placed, Mux(b_tail, value[16:], b_data))),
                    self.link.p.keep.eq(keep),
                    self.link.p.first.eq(b_first),
                    self.link.p.last.eq(b_last),
                ]
        return m

    def _head(self, m: Module, pad: Signal, ip_length: Signal, has_reth: Signal) -> Value:
        """Header bytes 0 to 73 for the description on `meta`; what its opcode has not is cut off by the caller."""
        meta = self.meta.p
        source, target = headers.ipv4(self.node), headers.ipv4(meta.dest_node)
        ip = {
            "version": 4, "ihl": 5, "length": ip_length, "flags": 0b010, "ttl": packet.TTL, "proto": packet.IP_PROTO_UDP,
            "src": source, "dst": target,
        }
        constant = (4 << 12 | 5 << 8) + (0b010 << 13) + (packet.TTL << 8 | packet.IP_PROTO_UDP)
        checksum = Signal(16)
        m.d.comb += checksum.eq(~headers.ones_sum(m, [
            Const(constant, 16), ip_length, source[:16], source[16:], target[:16], target[16:],
        ]))
        eth = {"dst": headers.mac(meta.dest_node), "src": headers.mac(self.node), "ethertype": packet.ETHERTYPE_IPV4}
        udp = {
            "sport": meta.dest_qp[:14] | packet.UDP_SPORT_BASE, "dport": packet.UDP_PORT_ROCE,
            "length": ip_length - packet.IP_BYTES,
        }
        bth = {
            "opcode": meta.opcode, "se": meta.se, "m": 1, "pad": pad, "pkey": packet.PKEY, "dest_qp": meta.dest_qp,
            "ack_req": meta.ack_req, "psn": meta.psn,
        }
        reth = headers.put(packet.RETH, {"va": meta.va, "rkey": meta.rkey, "length": meta.dma_len})
        aeth = headers.put(packet.AETH, {"syndrome": meta.syndrome, "msn": meta.msn})
        imm = headers.put(packet.IMM, {"imm": meta.imm})
        has_imm = headers.is_in(meta.opcode, packet.HAS_IMM)
        return Cat(
            headers.put(packet.ETH, eth), headers.put(packet.IPV4, {**ip, "checksum": checksum}), headers.put(packet.UDP, udp),
            headers.put(packet.BTH, bth), Mux(has_reth, reth, Mux(has_imm, imm, aeth)), imm,
        )
