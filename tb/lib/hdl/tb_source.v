// Stream source: words from a memory, with random idle cycles. Words are loaded in bulk when `start` toggles.
// valid, once high, stays until ready; the payload is a register.
module tb_source #(
    parameter WIDTH = 8,
    parameter DEPTH = 1024,
    parameter FILE = "source.bin"  // words as the simulator's $fread takes them: whole bytes, highest first
) (
    input clk,
    input rst,
    input start,
    input load,
    input [31:0] count,
    input [16:0] idle,  // probability of an idle cycle, out of 65536
    input [31:0] seed,
    output reg valid,
    output reg [WIDTH-1:0] payload,
    input ready,
    output reg [31:0] sent,
    output done
);
  reg [WIDTH-1:0] mem[0:DEPTH-1];
  integer file, bytes;
  reg started;
  reg [31:0] next;
  reg [31:0] rnd;
  wire free = ~valid | ready;
  wire go = (idle == 0) | ({1'b0, rnd[15:0]} >= idle);
  assign done = (sent == count) & (started == start);
  initial begin
    valid = 0;
    payload = 0;
    sent = 0;
    next = 0;
    rnd = 1;
    started = 0;
  end
  always @(posedge clk) begin
    if (idle != 0) begin
      rnd <= (rnd >> 1) ^ (rnd[0] ? 32'hA3000000 : 0);
    end
    if (rst) begin
      valid <= 0;
      sent <= 0;
      next <= count;
      started <= start;
    end else if (started != start) begin
      if (load & count != 0) begin
        file = $fopen(FILE, "rb");
        bytes = $fread(mem, file, 0, count);
        $fclose(file);
        if (bytes != count * ((WIDTH + 7) / 8)) begin
          $display("tb_source: %s holds %0d bytes, expected %0d words of %0d bits", FILE, bytes, count, WIDTH);
          $finish;
        end
      end
      started <= start;
      next <= load ? 0 : count;
      sent <= load ? 0 : count;
      rnd <= seed | 1;
    end else begin
      if (valid & ready) sent <= sent + 1;
      if (free) begin
        valid <= 0;
        if (next != count & go) begin
          valid <= 1;
          payload <= mem[next];
          next <= next + 1;
        end
      end
    end
  end
endmodule
