// Bare C++ testbench of a block between streams and AXI4 memories: a clock loop and the same words as the cocotb run.
// Usage: block FOLDER RUNS SINK=WORDS…; FOLDER has <source>.bin and image.bin. Prints cycles, CPU nanoseconds, and the sum of the output bytes of the
// last run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"

struct Port { const char* name; void* payload; CData* valid; CData* ready; size_t bytes; };
struct Source { Port port; std::vector<uint8_t> words; size_t sent, n; };
struct Sink { Port port; size_t got, n; };
#include "ports.h"  // generated: source_ports(m), sink_ports(m), EACH_MEMORY(X), ADDR

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

static std::vector<uint8_t> load(const std::string& name) {
  std::vector<uint8_t> out;
  if (FILE* f = std::fopen(name.c_str(), "rb")) {
    std::fseek(f, 0, SEEK_END);
    out.resize(std::ftell(f));
    std::rewind(f);
    if (std::fread(out.data(), 1, out.size(), f) != out.size()) std::exit(3);
    std::fclose(f);
  }
  return out;
}

struct Burst { uint64_t addr; int beats; };
static Burst burst(uint64_t x);
struct Memory {  // in order, a beat a cycle, one cycle from address to data
  std::vector<uint8_t> bytes;
  std::deque<Burst> read, write;
  int answers = 0;
};
// Drive the memory's side before the edge / take what the edge moves.
#define DRIVE(n)                                                                                         \
  m.JOIN(n, ___05Far___05Fready) = m.JOIN(n, ___05Faw___05Fready) = 1;                                   \
  m.JOIN(n, ___05Fw___05Fready) = !memory_##n.write.empty();                                             \
  m.JOIN(n, ___05Fr___05Fvalid) = !memory_##n.read.empty();                                              \
  if (!memory_##n.read.empty()) {                                                                        \
    std::memcpy(m.JOIN(n, ___05Fr___05Fpayload).data(), &memory_##n.bytes[memory_##n.read.front().addr], 64); \
    m.JOIN(n, ___05Fr___05Fpayload)[16] = (memory_##n.read.front().beats == 1) << 2;                     \
  }                                                                                                      \
  m.JOIN(n, ___05Fb___05Fvalid) = memory_##n.answers > 0;                                                \
  m.JOIN(n, ___05Fb___05Fpayload) = 0;
#define TAKE(n)                                                                                          \
  if (m.JOIN(n, ___05Fr___05Fvalid) && m.JOIN(n, ___05Fr___05Fready)) {                                  \
    memory_##n.read.front().addr += 64;                                                                  \
    if (!--memory_##n.read.front().beats) memory_##n.read.pop_front();                                   \
  }                                                                                                      \
  if (m.JOIN(n, ___05Fb___05Fvalid) && m.JOIN(n, ___05Fb___05Fready)) memory_##n.answers--;              \
  if (m.JOIN(n, ___05Fw___05Fvalid) && m.JOIN(n, ___05Fw___05Fready)) {                                  \
    Burst& to = memory_##n.write.front();                                                                \
    const auto& w = m.JOIN(n, ___05Fw___05Fpayload);                                                     \
    const uint64_t strobe = w[16] | uint64_t(w[17]) << 32;                                               \
    if (~strobe == 0) std::memcpy(&memory_##n.bytes[to.addr], w.data(), 64);                             \
    else                                                                                                 \
      for (int i = 0; i < 64; i++)                                                                       \
        if (strobe >> i & 1) memory_##n.bytes[to.addr + i] = reinterpret_cast<const uint8_t*>(w.data())[i]; \
    to.addr += 64;                                                                                       \
    if (!--to.beats) {                                                                                   \
      memory_##n.write.pop_front();                                                                      \
      memory_##n.answers++;                                                                              \
    }                                                                                                    \
  }                                                                                                      \
  if (m.JOIN(n, ___05Far___05Fvalid)) memory_##n.read.push_back(burst(m.JOIN(n, ___05Far___05Fpayload))); \
  if (m.JOIN(n, ___05Faw___05Fvalid)) memory_##n.write.push_back(burst(m.JOIN(n, ___05Faw___05Fpayload)));

static Burst burst(uint64_t x) { return {x & ((1ull << ADDR) - 1), int(x >> ADDR & 255) + 1}; }
#define MEMORY(n) Memory memory_##n; memory_##n.bytes = load(folder + "/image.bin");

int main(int argc, char** argv) {
  const std::string folder = argv[1];
  VerilatedContext context;
  Vtop m(&context);
  std::vector<Source> sources;
  std::vector<Sink> sinks;
  for (const Port& p : source_ports(m)) {
    sources.push_back({p, load(folder + "/" + p.name + ".bin"), 0, 0});
    sources.back().n = sources.back().words.size() / p.bytes;
  }
  for (const Port& p : sink_ports(m)) {
    sinks.push_back({p, 0, 0});
    for (int i = 3; i < argc; i++)
      if (!std::strncmp(argv[i], p.name, std::strlen(p.name)) && argv[i][std::strlen(p.name)] == '=')
        sinks.back().n = std::atoi(argv[i] + std::strlen(p.name) + 1);
  }
  EACH_MEMORY(MEMORY)
  m.rst = 1;
  for (int i = 0; i < 4; i++) {
    m.clk = 0; m.eval();
    m.clk = 1; m.eval();
  }
  m.rst = 0;
  uint64_t cycles = 0, sum = 0;
  timespec t0, t1;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
  for (int run = std::atoi(argv[2]); run; run--) {
    size_t missing = 0;
    sum = 0;
    for (Source& s : sources) s.sent = 0;
    for (Sink& s : sinks) { s.got = 0; missing += s.n; *s.port.ready = 1; }
    while (missing) {
      for (Source& s : sources) {
        *s.port.valid = s.sent < s.n;
        if (s.sent < s.n) std::memcpy(s.port.payload, &s.words[s.sent * s.port.bytes], s.port.bytes);
      }
      EACH_MEMORY(DRIVE)
      m.clk = 0;
      m.eval();
      for (Source& s : sources) s.sent += *s.port.valid && *s.port.ready;
      for (Sink& s : sinks)
        if (*s.port.valid) {
          s.got++;
          missing--;
          for (size_t i = 0; i < s.port.bytes; i++) sum += static_cast<const uint8_t*>(s.port.payload)[i];
        }
      EACH_MEMORY(TAKE)
      m.clk = 1;
      m.eval();
      cycles++;
      if (cycles > 100000000) return 2;  // a run that does not end
    }
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
  std::printf("%llu %lld %llx\n", (unsigned long long)cycles, (t1.tv_sec - t0.tv_sec) * 1000000000ll + t1.tv_nsec - t0.tv_nsec, (unsigned long long)sum);
  return 0;
}
