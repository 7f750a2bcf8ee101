// AXI4 memory model for a manager: in-order, `latency` cycles from address to first beat (and from last write beat to
// response), one beat a cycle and direction, random stalls, an address range that answers with an error.
// Loaded and dumped in bulk. Checks of the manager, in `rule`:
// 0: burst crosses 4 KiB; 1: WLAST misplaced; 2: not INCR; 3: not full width; 4: a channel dropped valid or changed its
// payload while waiting; 5: X on a handshake or a valid payload; 6: unaligned start address of a read or write.
module tb_axi_memory #(
    parameter BYTES = 64,
    parameter ADDR = 32,
    parameter ID = 4,
    parameter SIZE = 1048576,
    parameter LOAD = "memory.bin",  // $fread
    parameter DUMP = "memory.hex",  // $writememh
    parameter QUEUE = 64,
    parameter LOG = 6
) (
    input clk,
    input rst,
    input load,
    input dump,
    input [31:0] load_first,
    input [31:0] load_last,
    input [31:0] dump_first,
    input [31:0] dump_last,
    input [15:0] latency,
    input [16:0] stall,
    input [31:0] seed,
    input [63:0] error_start,
    input [63:0] error_end,  // exclusive; equal: none
    input [1:0] error_resp,
    input [ADDR+ID+12:0] aw_payload,
    input aw_valid,
    output aw_ready,
    input [BYTES*9:0] w_payload,
    input w_valid,
    output w_ready,
    output [ID+1:0] b_payload,
    output b_valid,
    input b_ready,
    input [ADDR+ID+12:0] ar_payload,
    input ar_valid,
    output ar_ready,
    output [BYTES*8+ID+2:0] r_payload,
    output r_valid,
    input r_ready,
    output reg [31:0] low,  // words written since the last load: lowest, highest
    output reg [31:0] high,
    output reg [31:0] reads,
    output reg [31:0] writes,
    output reg [6:0] rule,
    output idle
);
  localparam WORDS = SIZE / BYTES;
  localparam SHIFT = $clog2(BYTES);
  reg [BYTES*8-1:0] mem[0:WORDS-1];
  reg [BYTES*8-1:0] merged;
  reg loaded, dumped;
  reg [31:0] now;
  reg [31:0] rnd;
  wire [3:0] go = (stall == 0) ? 4'hF : {
    {1'b0, rnd[15:0]} >= stall, {1'b0, rnd[23:8]} >= stall, {1'b0, rnd[31:16]} >= stall, {1'b0, rnd[19:4]} >= stall};

  // read side: queue of accepted addresses
  reg [ADDR-1:0] ar_addr[0:QUEUE-1];
  reg [7:0] ar_len[0:QUEUE-1];
  reg [ID-1:0] ar_id[0:QUEUE-1];
  reg [31:0] ar_time[0:QUEUE-1];
  reg [LOG:0] ar_in, ar_out;
  reg [7:0] r_beat;
  reg r_v;
  reg [BYTES*8+ID+2:0] r_p;
  wire [LOG:0] ar_used = ar_in - ar_out;  // of its own width: pointers wrap
  wire ar_full = ar_used == QUEUE;
  reg ar_open;
  assign ar_ready = ar_open & ~ar_full;
  wire [LOG-1:0] rh = ar_out[LOG-1:0];
  wire [63:0] r_addr = {{(64 - ADDR) {1'b0}}, ar_addr[rh]} + {48'd0, r_beat, {SHIFT{1'b0}}};
  wire r_start = (ar_in != ar_out) & ((now - ar_time[rh]) >= {16'd0, latency}) & (~r_v | r_ready) & (go[0] | r_v_hold);
  reg r_v_hold;
  wire r_bad = r_addr >= SIZE;
  wire r_err = (r_addr >= error_start) & (r_addr < error_end);
  assign r_valid = r_v;
  assign r_payload = r_p;

  // write side
  reg [ADDR-1:0] aw_addr[0:QUEUE-1];
  reg [7:0] aw_len[0:QUEUE-1];
  reg [ID-1:0] aw_id[0:QUEUE-1];
  reg [LOG:0] aw_in, aw_out;
  reg [7:0] w_beat;
  reg [1:0] w_resp;
  wire [LOG:0] aw_used = aw_in - aw_out;  // of its own width: pointers wrap
  wire aw_full = aw_used == QUEUE;
  reg aw_open, w_open;
  assign aw_ready = aw_open & ~aw_full;
  wire [LOG-1:0] wh = aw_out[LOG-1:0];
  wire [63:0] w_addr = {{(64 - ADDR) {1'b0}}, aw_addr[wh]} + {48'd0, w_beat, {SHIFT{1'b0}}};
  wire [LOG:0] b_used = b_in - b_out;  // of its own width: pointers wrap
  wire b_full = b_used == QUEUE;
  assign w_ready = w_open & (aw_in != aw_out) & ~b_full;
  wire [BYTES-1:0] w_strb = w_payload[BYTES*9-1:BYTES*8];
  wire w_last = w_payload[BYTES*9];
  wire [1:0] w_now = (w_addr >= SIZE) ? 2'd3 : ((w_addr >= error_start) & (w_addr < error_end)) ? error_resp : 2'd0;
  reg [ID+1:0] b_q[0:QUEUE-1];
  reg [31:0] b_time[0:QUEUE-1];
  reg [LOG:0] b_in, b_out;
  reg b_v;
  reg [ID+1:0] b_p;
  wire [LOG-1:0] bh = b_out[LOG-1:0];
  assign b_valid = b_v;
  assign b_payload = b_p;
  assign idle = (ar_in == ar_out) & (aw_in == aw_out) & (b_in == b_out) & ~r_v & ~b_v & ~aw_valid & ~ar_valid & ~w_valid;

  // rule checks
  reg aw_held, w_held, ar_held;
  reg [ADDR+ID+12:0] aw_before, ar_before;
  reg [BYTES*9:0] w_before;
  integer i, file, bytes;
  initial begin
    merged = 0;
    loaded = 0;
    dumped = 0;
    now = 0;
    rnd = 1;
    ar_in = 0;
    ar_out = 0;
    aw_in = 0;
    aw_out = 0;
    b_in = 0;
    b_out = 0;
    r_beat = 0;
    w_beat = 0;
    w_resp = 0;
    r_v = 0;
    r_v_hold = 0;
    b_v = 0;
    r_p = 0;
    b_p = 0;
    ar_open = 0;
    aw_open = 0;
    w_open = 0;
    low = 32'hFFFFFFFF;
    high = 0;
    reads = 0;
    writes = 0;
    rule = 0;
    aw_held = 0;
    w_held = 0;
    ar_held = 0;
    aw_before = 0;
    ar_before = 0;
    w_before = 0;
    for (i = 0; i < WORDS; i = i + 1) mem[i] = 0;
  end
  always @(posedge clk) begin
    now <= now + 1;
    if (stall != 0) rnd <= (rnd == 1) ? (seed | 2) : (rnd >> 1) ^ (rnd[0] ? 32'hA3000000 : 0);
    if (loaded != load) begin
      loaded <= load;
      file = $fopen(LOAD, "rb");
      bytes = $fread(mem, file, load_first, load_last - load_first + 1);
      $fclose(file);
      if (bytes != (load_last - load_first + 1) * BYTES) begin
        $display("tb_axi_memory: %s holds %0d bytes, expected words %0d to %0d", LOAD, bytes, load_first, load_last);
        $finish;
      end
      low <= 32'hFFFFFFFF;
      high <= 0;
    end
    if (dumped != dump) begin
      dumped <= dump;
      $writememh(DUMP, mem, dump_first, dump_last);
    end
    if (rst) begin
      ar_in <= 0;
      ar_out <= 0;
      aw_in <= 0;
      aw_out <= 0;
      b_in <= 0;
      b_out <= 0;
      r_beat <= 0;
      w_beat <= 0;
      w_resp <= 0;
      r_v <= 0;
      b_v <= 0;
      ar_open <= 0;
      aw_open <= 0;
      w_open <= 0;
      aw_held <= 0;
      w_held <= 0;
      ar_held <= 0;
    end else begin
      ar_open <= go[1];
      aw_open <= go[2];
      w_open  <= go[3];
      // reads
      if (ar_valid & ar_ready) begin
        ar_addr[ar_in[LOG-1:0]] <= ar_payload[ADDR-1:0];
        ar_len[ar_in[LOG-1:0]] <= ar_payload[ADDR+7:ADDR];
        ar_id[ar_in[LOG-1:0]] <= ar_payload[ADDR+ID+12:ADDR+13];
        ar_time[ar_in[LOG-1:0]] <= now + 1;
        ar_in <= ar_in + 1;
        if (({20'd0, ar_payload[11:0]} + (({24'd0, ar_payload[ADDR+7:ADDR]} + 1) << SHIFT)) > 4096) rule[0] <= 1;
        if (ar_payload[ADDR+12:ADDR+11] != 1) rule[2] <= 1;
        if (ar_payload[ADDR+10:ADDR+8] != SHIFT) rule[3] <= 1;
        if (ar_payload[SHIFT-1:0] != 0) rule[6] <= 1;
      end
      r_v_hold <= 0;
      if (r_start) begin
        r_v <= 1;
        reads <= reads + 1;
        r_p <= {
          ar_id[rh], r_beat == ar_len[rh], r_bad ? 2'd3 : r_err ? error_resp : 2'd0,
          (r_bad | r_err) ? {BYTES * 8{1'b0}} : mem[r_addr>>SHIFT]
        };
        if (r_beat == ar_len[rh]) begin
          r_beat <= 0;
          ar_out <= ar_out + 1;
        end else r_beat <= r_beat + 1;
      end else if (r_ready) r_v <= 0;
      // writes
      if (aw_valid & aw_ready) begin
        aw_addr[aw_in[LOG-1:0]] <= aw_payload[ADDR-1:0];
        aw_len[aw_in[LOG-1:0]] <= aw_payload[ADDR+7:ADDR];
        aw_id[aw_in[LOG-1:0]] <= aw_payload[ADDR+ID+12:ADDR+13];
        aw_in <= aw_in + 1;
        if (({20'd0, aw_payload[11:0]} + (({24'd0, aw_payload[ADDR+7:ADDR]} + 1) << SHIFT)) > 4096) rule[0] <= 1;
        if (aw_payload[ADDR+12:ADDR+11] != 1) rule[2] <= 1;
        if (aw_payload[ADDR+10:ADDR+8] != SHIFT) rule[3] <= 1;
        if (aw_payload[SHIFT-1:0] != 0) rule[6] <= 1;
      end
      if (w_valid & w_ready) begin
        writes <= writes + 1;
        if (w_last != (w_beat == aw_len[wh])) rule[1] <= 1;
        if (w_now == 0) begin
          if (&w_strb) mem[w_addr>>SHIFT] <= w_payload[BYTES*8-1:0];
          else begin
            merged = mem[w_addr>>SHIFT];
            for (i = 0; i < BYTES; i = i + 1) if (w_strb[i]) merged[i*8+:8] = w_payload[i*8+:8];
            mem[w_addr>>SHIFT] <= merged;
          end
          if (w_strb != 0) begin
            if ((w_addr >> SHIFT) < low) low <= w_addr >> SHIFT;
            if ((w_addr >> SHIFT) > high) high <= w_addr >> SHIFT;
          end
        end
        if (w_beat == aw_len[wh]) begin
          w_beat <= 0;
          w_resp <= 0;
          aw_out <= aw_out + 1;
          b_q[b_in[LOG-1:0]] <= {aw_id[wh], (w_resp != 0) ? w_resp : w_now};
          b_time[b_in[LOG-1:0]] <= now + 1;
          b_in <= b_in + 1;
        end else begin
          w_beat <= w_beat + 1;
          if (w_resp == 0) w_resp <= w_now;
        end
      end
      if (~b_v | b_ready) begin
        b_v <= 0;
        if (b_in != b_out & (now - b_time[bh]) >= {16'd0, latency} & go[2]) begin
          b_v <= 1;
          b_p <= b_q[bh];
          b_out <= b_out + 1;
        end
      end
      // stream rules
      aw_held <= aw_valid & ~aw_ready;
      w_held  <= w_valid & ~w_ready;
      ar_held <= ar_valid & ~ar_ready;
      if (aw_valid & ~aw_ready) aw_before <= aw_payload;
      if (w_valid & ~w_ready) w_before <= w_payload;
      if (ar_valid & ~ar_ready) ar_before <= ar_payload;
      if (aw_held) if (~aw_valid | aw_payload != aw_before) rule[4] <= 1;
      if (w_held) if (~w_valid | w_payload != w_before) rule[4] <= 1;
      if (ar_held) if (~ar_valid | ar_payload != ar_before) rule[4] <= 1;
`ifdef __ICARUS__
      if (aw_valid === 1'bx | ar_valid === 1'bx | w_valid === 1'bx | b_ready === 1'bx | r_ready === 1'bx) rule[5] <= 1;
      if (aw_valid === 1'b1) if ((^aw_payload) === 1'bx) rule[5] <= 1;
      if (ar_valid === 1'b1) if ((^ar_payload) === 1'bx) rule[5] <= 1;
      if (w_valid === 1'b1) if ((^{w_last, w_strb}) === 1'bx) rule[5] <= 1;
`endif
    end
  end
endmodule
