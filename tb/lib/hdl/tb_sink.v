// Stream sink: keeps the words it accepts, with random back-pressure, and checks the stream rules:
// bit 0: valid fell without ready; bit 1: payload changed while waiting; bit 2: X on valid, or on a valid payload.
module tb_sink #(
    parameter WIDTH = 8,
    parameter DEPTH = 1024,
    parameter FILE = "sink.hex"
) (
    input clk,
    input rst,
    input start,
    input dump,
    input [31:0] expect_count,
    input [16:0] stall,  // probability of a not-ready cycle, out of 65536
    input [31:0] seed,
    input valid,
    input [WIDTH-1:0] payload,
    output reg ready,
    output reg [31:0] got,
    output reg [2:0] rule,
    output done
);
  reg [WIDTH-1:0] mem[0:DEPTH-1];
  reg started;
  reg dumped;
  reg [31:0] rnd;
  reg held;
  reg [WIDTH-1:0] prior;
  assign done = (got >= expect_count) & (started == start);
  initial begin
    ready = 0;
    got = 0;
    rule = 0;
    rnd = 1;
    started = 0;
    dumped = 0;
    held = 0;
    prior = 0;
  end
  always @(posedge clk) begin
    if (stall != 0) begin
      rnd <= (rnd >> 1) ^ (rnd[0] ? 32'hA3000000 : 0);
    end
    if (dumped != dump) begin
      dumped <= dump;
      if (got != 0) $writememh(FILE, mem, 0, got - 1);
    end
    if (rst) begin
      ready <= 0;
      got <= 0;
      held <= 0;
      started <= start;
    end else begin
      if (started != start) begin
        started <= start;
        got <= 0;
        rnd <= seed | 1;
      end else if (valid & ready & got < DEPTH) begin
        mem[got] <= payload;
        got <= got + 1;
      end
      ready <= (stall == 0) | ({1'b0, rnd[15:0]} >= stall);
      held <= valid & ~ready;
      if (valid & ~ready) prior <= payload;
      if (held & ~valid) rule[0] <= 1;
      if (held & valid) if (payload != prior) rule[1] <= 1;  // not one condition: event-driven simulators evaluate all of it
`ifdef __ICARUS__
      if (valid === 1'bx) rule[2] <= 1;
      if (valid === 1'b1) if ((^payload) === 1'bx) rule[2] <= 1;
`endif
    end
  end
endmodule
