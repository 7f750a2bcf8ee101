// Bare C++ testbench of a whole system: plays a recording of one device's calls (bench/speed.py) and toggles the clock, nothing else.
// Built twice: with the compiled station and switch of the rtl device, and (-DWHOLE) with one model of the whole system.
// Every cycle count and every memory read must be as recorded. Prints cycles and CPU nanoseconds.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "verilated.h"
#include "verilated_sym_props.h"
#include "verilated_syms.h"
#ifdef WHOLE
#include "Vsystem.h"
#else
#include "Vstation.h"
#include "Vswitch.h"
#endif

struct Ctl {  // one node's AXI4-Lite port and event counter
  uint32_t* aw; uint8_t *aw_valid, *aw_ready;
  uint64_t* w; uint8_t *w_valid, *w_ready;
  uint8_t *b, *b_valid, *b_ready;
  uint32_t* ar; uint8_t *ar_valid, *ar_ready;
  uint64_t* r; uint8_t *r_valid, *r_ready;
  uint32_t* event;
};
#include "ports.h"  // generated: ctl_ports; for stations and switch also switch_ports and names

struct Command { uint32_t node, write, addr, data; };

static VerilatedContext context;
#ifdef WHOLE
static std::unique_ptr<Vsystem> whole;
static const char* const SCOPE = "TOP.System.station%d.node.sram.bank%d";
static void reset(int v) { whole->rst = v; }
static inline void cycle() {
  whole->clk = 1;
  whole->eval();
  whole->clk = 0;
  whole->eval();
}
static void start(int) { whole = std::make_unique<Vsystem>(&context); }
static std::vector<Ctl> controls() { return ctl_ports(*whole); }
#else
static std::vector<std::unique_ptr<Vstation>> station;
static std::unique_ptr<Vswitch> net;
static std::vector<SwitchPort> port;
static const char* const SCOPE = "node%d.Station.node.sram.bank%d";
static void reset(int v) {
  for (auto& s : station) s->rst = v;
  net->rst = v;
}
static inline void cycle() {
  for (size_t i = 0; i < station.size(); i++) {
    Vstation& s = *station[i];
    SwitchPort& p = port[i];
    *p.i_valid = s.up__valid;
    std::memcpy(p.i_payload, s.up__payload.data(), 76);
    s.up__ready = *p.i_ready;
    s.down__valid = *p.o_valid;
    std::memcpy(s.down__payload.data(), p.o_payload, 76);
    *p.o_ready = s.down__ready;
  }
  for (int clk = 1; clk >= 0; clk--) {
    for (auto& s : station) {
      s->clk = clk;
      s->eval();
    }
    net->clk = clk;
    net->eval();
  }
}
static void start(int nodes) {
  for (int i = 0; i < nodes; i++) station.push_back(std::make_unique<Vstation>(&context, ("node" + std::to_string(i)).c_str()));
  net = std::make_unique<Vswitch>(&context, "switch");
  port = switch_ports(*net);
}
static std::vector<Ctl> controls() {
  std::vector<Ctl> out;
  for (auto& s : station) out.push_back(ctl_ports(*s));
  return out;
}
#endif

static uint8_t* bank(int node, int b) {
  char name[256];
  std::snprintf(name, sizeof name, SCOPE, node, b);
  const VerilatedScope* s = context.scopeFind(name);
  VerilatedVar* v = s ? s->varFind("mem") : nullptr;
  if (!v) {
    std::fprintf(stderr, "no memory %s\n", name);
    context.internalsDump();
    std::exit(2);
  }
  return static_cast<uint8_t*>(v->datap());
}

static FILE* in;
template <class T> static T get() {
  T x;
  if (std::fread(&x, sizeof x, 1, in) != 1) std::exit(3);
  return x;
}

static long long cpu() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static uint64_t cycles = 0;
static std::vector<Ctl> ctl;

static void step() {
  uint8_t taken[64][3];
  for (size_t i = 0; i < ctl.size(); i++) {
    taken[i][0] = *ctl[i].aw_ready;
    taken[i][1] = *ctl[i].w_ready;
    taken[i][2] = *ctl[i].ar_ready;
  }
  cycle();
  for (size_t i = 0; i < ctl.size(); i++) {
    if (taken[i][0]) *ctl[i].aw_valid = 0;
    if (taken[i][1]) *ctl[i].w_valid = 0;
    if (taken[i][2]) *ctl[i].ar_valid = 0;
  }
  cycles++;
}

static int64_t run(const std::vector<std::vector<Command>>& lists, const std::vector<uint32_t>& events, uint64_t deadline) {
  std::vector<size_t> at(lists.size());
  std::vector<char> waiting(lists.size());
  const uint64_t begin = cycles;
  for (;;) {
    bool busy = false, reached = true;
    for (size_t i = 0; i < ctl.size(); i++) {
      if (at[i] < lists[i].size()) {
        busy = true;
        const Command& c = lists[i][at[i]];
        if (!waiting[i]) {
          waiting[i] = 1;
          if (c.write) {
            *ctl[i].aw = c.addr;
            *ctl[i].w = uint64_t(0xF) << 32 | c.data;
            *ctl[i].aw_valid = *ctl[i].w_valid = 1;
          } else {
            *ctl[i].ar = c.addr;
            *ctl[i].ar_valid = 1;
          }
        } else if (c.write ? *ctl[i].b_valid : *ctl[i].r_valid) {
          at[i]++;
          waiting[i] = 0;
        }
      }
      if (!events.empty()) reached &= int32_t(*ctl[i].event - events[i]) >= 0;
    }
    if (!busy && reached) return int64_t(cycles - begin);
    if (cycles - begin >= deadline) return -1;
    step();
  }
}

int main(int, char** argv) {
  in = std::fopen(argv[1], "rb");
  if (!in) return 3;
  const int nodes = get<uint32_t>(), banks = get<uint32_t>();
  start(nodes);
  ctl = controls();
  for (auto& c : ctl) *c.b_ready = *c.r_ready = 1;
  reset(1);
  for (int i = 0; i < 8; i++) step();
  reset(0);
  std::vector<std::vector<uint8_t*>> mem(nodes);
  for (int i = 0; i < nodes; i++)
    for (int b = 0; b < banks; b++) mem[i].push_back(bank(i, b));
  const uint64_t first = cycles;
  long long spent = 0;
  std::vector<uint8_t> data;
  for (uint32_t op; (op = get<uint32_t>());) {
    if (op == 3) {  // register accesses and a run
      std::vector<std::vector<Command>> lists(nodes);
      for (uint32_t n = get<uint32_t>(); n; n--) {
        const Command c = get<Command>();
        lists[c.node].push_back(c);
      }
      std::vector<uint32_t> events(get<uint32_t>());
      for (auto& e : events) e = get<uint32_t>();
      const uint64_t deadline = get<uint64_t>();
      const int64_t want = get<int64_t>();
      const long long before = cpu();
      const int64_t took = run(lists, events, deadline);
      spent += cpu() - before;
      if (took != want) {
        std::fprintf(stderr, "%lld cycles, recorded %lld\n", (long long)took, (long long)want);
        return 1;
      }
      continue;
    }
    const uint32_t node = get<uint32_t>();
    const uint64_t addr = get<uint64_t>(), n = get<uint64_t>();
    data.resize(n);
    if (n && std::fread(data.data(), 1, n, in) != n) return 3;
    const long long before = cpu();
    for (uint64_t i = 0; i < n;) {
      const uint64_t a = addr + i, word = a / 64, off = a % 64, part = std::min<uint64_t>(64 - off, n - i);
      uint8_t* p = mem[node][word % banks] + word / banks * 64 + off;
      if (op == 1) std::memcpy(p, &data[i], part);
      else if (std::memcmp(p, &data[i], part)) {
        std::fprintf(stderr, "memory of node %u at %#llx differs from the recording\n", node, (unsigned long long)a);
        return 1;
      }
      i += part;
    }
    spent += cpu() - before;
  }
  std::printf("%llu %lld\n", (unsigned long long)(cycles - first), spent);
  return 0;
}
