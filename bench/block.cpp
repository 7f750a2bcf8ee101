// Bare C++ testbench of a block between one stream in, one stream out and (AXI) two memories: a clock loop and the same words as the cocotb run.
// Usage: block WORDS IMAGE RUNS. Prints cycles, CPU nanoseconds, and the sum of the output bytes of the last run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#include "ports.h"  // generated: IN, OUT (port prefixes), IN_BYTES, OUT_BYTES, ADDR, AXI

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define P(port, what) m.JOIN(port, what)

static std::vector<uint8_t> load(const char* name) {
  std::vector<uint8_t> out;
  if (FILE* f = std::fopen(name, "rb")) {
    std::fseek(f, 0, SEEK_END);
    out.resize(std::ftell(f));
    std::rewind(f);
    if (std::fread(out.data(), 1, out.size(), f) != out.size()) std::exit(3);
    std::fclose(f);
  }
  return out;
}

#if AXI
struct Burst { uint64_t addr; int beats; };
struct Memory {  // in order, a beat a cycle, one cycle from address to data
  std::vector<uint8_t> bytes;
  std::deque<Burst> read, write;
  int answers = 0;
};
// Drive the memory's side before the edge / take what the edge moves.
#define DRIVE(n, M)                                                             \
  m.JOIN(n, ___05Far___05Fready) = m.JOIN(n, ___05Faw___05Fready) = 1;            \
  m.JOIN(n, ___05Fw___05Fready) = !M.write.empty();                               \
  m.JOIN(n, ___05Fr___05Fvalid) = !M.read.empty();                                \
  if (!M.read.empty()) {                                                        \
    std::memcpy(m.JOIN(n, ___05Fr___05Fpayload).data(), &M.bytes[M.read.front().addr], 64); \
    m.JOIN(n, ___05Fr___05Fpayload)[16] = (M.read.front().beats == 1) << 2;       \
  }                                                                             \
  m.JOIN(n, ___05Fb___05Fvalid) = M.answers > 0;                                  \
  m.JOIN(n, ___05Fb___05Fpayload) = 0;
#define TAKE(n, M)                                                              \
  if (m.JOIN(n, ___05Fr___05Fvalid) && m.JOIN(n, ___05Fr___05Fready)) {           \
    M.read.front().addr += 64;                                                  \
    if (!--M.read.front().beats) M.read.pop_front();                            \
  }                                                                             \
  if (m.JOIN(n, ___05Fb___05Fvalid) && m.JOIN(n, ___05Fb___05Fready)) M.answers--; \
  if (m.JOIN(n, ___05Fw___05Fvalid) && m.JOIN(n, ___05Fw___05Fready)) {           \
    Burst& to = M.write.front();                                                \
    const auto& w = m.JOIN(n, ___05Fw___05Fpayload);                              \
    const uint64_t strobe = w[16] | uint64_t(w[17]) << 32;                      \
    if (~strobe == 0) std::memcpy(&M.bytes[to.addr], w.data(), 64);             \
    else                                                                        \
      for (int i = 0; i < 64; i++)                                              \
        if (strobe >> i & 1) M.bytes[to.addr + i] = reinterpret_cast<const uint8_t*>(w.data())[i]; \
    to.addr += 64;                                                              \
    if (!--to.beats) {                                                          \
      M.write.pop_front();                                                      \
      M.answers++;                                                              \
    }                                                                           \
  }                                                                             \
  if (m.JOIN(n, ___05Far___05Fvalid)) M.read.push_back(burst(m.JOIN(n, ___05Far___05Fpayload))); \
  if (m.JOIN(n, ___05Faw___05Fvalid)) M.write.push_back(burst(m.JOIN(n, ___05Faw___05Fpayload)));

static Burst burst(uint64_t x) { return {x & ((1ull << ADDR) - 1), int(x >> ADDR & 255) + 1}; }
#endif

int main(int, char** argv) {
  const std::vector<uint8_t> words = load(argv[1]);
  const size_t n = words.size() / IN_BYTES;
  VerilatedContext context;
  Vtop m(&context);
#if AXI
  Memory a, b;
  a.bytes = b.bytes = load(argv[2]);
#endif
  m.rst = 1;
  for (int i = 0; i < 4; i++) {
    m.clk = 0; m.eval();
    m.clk = 1; m.eval();
  }
  m.rst = 0;
  uint64_t cycles = 0, sum = 0;
  timespec t0, t1;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
  for (int run = std::atoi(argv[3]); run; run--) {
    size_t sent = 0, got = 0;
    sum = 0;
    P(OUT, ready) = 1;
    while (got < n) {
      P(IN, valid) = sent < n;
      if (sent < n) std::memcpy(&P(IN, payload), &words[sent * IN_BYTES], IN_BYTES);
#if AXI
      DRIVE(axi_a, a)
      DRIVE(axi_b, b)
#endif
      m.clk = 0;
      m.eval();
      sent += P(IN, valid) && P(IN, ready);
      if (P(OUT, valid)) {
        got++;
        const uint8_t* p = reinterpret_cast<const uint8_t*>(&P(OUT, payload));
        for (int i = 0; i < OUT_BYTES; i++) sum += p[i];
      }
#if AXI
      TAKE(axi_a, a)
      TAKE(axi_b, b)
#endif
      m.clk = 1;
      m.eval();
      cycles++;
    }
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
  std::printf("%llu %lld %llx\n", (unsigned long long)cycles, (t1.tv_sec - t0.tv_sec) * 1000000000ll + t1.tv_nsec - t0.tv_nsec, (unsigned long long)sum);
  return 0;
}
