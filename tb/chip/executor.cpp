// Executor of a whole system: one compiled model of a station, instantiated once per node, and one of the switch.
// All models step together, one clock cycle at a time. What crosses between them (packet beats, ready, AXI4-Lite) comes from
// registers on both sides, so moving it once a cycle is exact. Called through the C functions at the end (tb/chip/executor.py).
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "Vstation.h"
#include "Vswitch.h"
#include "verilated.h"
#include "verilated_sym_props.h"
#include "verilated_syms.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Trace = VerilatedFstC;
#elif VM_TRACE
#include "verilated_vcd_c.h"
using Trace = VerilatedVcdC;
#endif
#include "switch_ports.h"  // generated: names of the ports, and the switch's ports as a table

namespace {

struct Command {  // one register access; mirrors tb/chip/executor.py
  uint32_t node, write, addr, data, value, resp;
};

constexpr int BEAT_WORDS = 19;  // 578 bits: data 512, keep 64, first, last

struct Player {  // register accesses of one node, in order
  std::vector<Command*> list;
  size_t at = 0;
  bool waiting = false;
};

struct Watched {  // a work queue whose errors end a run
  const uint8_t* state;  // its wq_state
  uint32_t node, queue;
  bool failed = false;
};

struct Frame {  // beats of a frame seen so far
  std::vector<uint8_t> bytes;
  bool open = false;
};

struct System {
  VerilatedContext context;
  std::vector<std::unique_ptr<Vstation>> station;
  std::unique_ptr<Vswitch> net;
  std::vector<Player> player;
  std::vector<SwitchPort> port;
  std::vector<Watched> watched;
  uint64_t settle = 0;  // cycles a run goes on after the first error of a watched queue
  uint64_t cycle = 0;
  void (*capture)(uint64_t cycle, uint32_t link, const uint8_t* frame, uint32_t bytes) = nullptr;
  std::vector<Frame> under_way;  // of each link, while `capture` is set: those of station i are 2i (up) and 2i + 1 (down)
#if VM_TRACE
  std::unique_ptr<Trace> trace;
#endif
  ~System() {
    for (auto& s : station) s->final();
    if (net) net->final();
#if VM_TRACE
    if (trace) trace->close();
#endif
  }

  void edge(int clk) {
    for (auto& s : station) {
      s->clk = clk;
      s->eval();
    }
    net->clk = clk;
    net->eval();
#if VM_TRACE
    if (trace) {
      context.timeInc(1);
      trace->dump(context.time());
    }
#endif
  }

  // Beats and ready bits between stations and switch, as they stand before the edge.
  void exchange() {
    for (size_t i = 0; i < station.size(); i++) {
      Vstation& s = *station[i];
      SwitchPort& p = port[i];
      *p.i_valid = s.up__valid;
      if (s.up__valid) std::memcpy(p.i_payload, s.up__payload.data(), BEAT_WORDS * 4);
      s.up__ready = *p.i_ready;
      s.down__valid = *p.o_valid;
      if (*p.o_valid) std::memcpy(s.down__payload.data(), p.o_payload, BEAT_WORDS * 4);
      *p.o_ready = s.down__ready;
      if (capture) {
        if (s.up__valid && s.up__ready) beat(2 * i, s.up__payload.data());
        if (s.down__valid && s.down__ready) beat(2 * i + 1, p.o_payload);
      }
    }
  }

  // One beat of a link: data, keep (contiguous from bit 0), first, last.
  void beat(size_t link, const uint32_t* w) {
    Frame& f = under_way[link];
    if (w[18] & 1) {
      f.bytes.clear();
      f.open = true;
    }
    if (!f.open) return;  // the rest of a frame whose start was not seen
    const uint8_t* data = reinterpret_cast<const uint8_t*>(w);
    f.bytes.insert(f.bytes.end(), data, data + __builtin_popcount(w[16]) + __builtin_popcount(w[17]));
    if (w[18] & 2) {
      capture(cycle, uint32_t(link), f.bytes.data(), uint32_t(f.bytes.size()));
      f.open = false;
    }
  }

  // Register players: drive the port for the coming edge, or take the answer that stands on it. Returns accesses still to do.
  size_t play() {
    size_t left = 0;
    for (size_t i = 0; i < station.size(); i++) {
      Player& p = player[i];
      if (p.at >= p.list.size()) continue;
      left += p.list.size() - p.at;
      Vstation& s = *station[i];
      Command& c = *p.list[p.at];
      if (!p.waiting) {
        p.waiting = true;
        if (c.write) {
          s.ctl__aw__payload = c.addr;
          s.ctl__w__payload = (uint64_t(0xF) << 32) | c.data;
          s.ctl__aw__valid = s.ctl__w__valid = 1;
        } else {
          s.ctl__ar__payload = c.addr;
          s.ctl__ar__valid = 1;
        }
      } else {
        const bool answered = c.write ? s.ctl__b__valid : s.ctl__r__valid;
        if (answered) {
          c.resp = c.write ? s.ctl__b__payload : uint32_t(s.ctl__r__payload >> 32) & 3;
          c.value = c.write ? 0 : uint32_t(s.ctl__r__payload);
          p.at++;
          p.waiting = false;
        }
      }
    }
    return left;
  }

  void step() {
    exchange();
    // ready as it stands before the edge tells which address and data words are taken by it
    uint8_t aw[64], w[64], ar[64];
    for (size_t i = 0; i < station.size(); i++) {
      Vstation& s = *station[i];
      aw[i] = s.ctl__aw__ready;
      w[i] = s.ctl__w__ready;
      ar[i] = s.ctl__ar__ready;
    }
    edge(1);
    for (size_t i = 0; i < station.size(); i++) {
      Vstation& s = *station[i];
      if (aw[i]) s.ctl__aw__valid = 0;
      if (w[i]) s.ctl__w__valid = 0;
      if (ar[i]) s.ctl__ar__valid = 0;
    }
    edge(0);
    cycle++;
  }
};

// The system of a handle, as the current one of this thread: Verilator's models look there when they go, and another system may
// have been made or freed since.
System& at(void* handle) {
  System& sys = *static_cast<System*>(handle);
  Verilated::threadContextp(&sys.context);
  return sys;
}

}  // namespace

extern "C" {

void* tawny_new(int nodes, const char* trace_file) {
  auto sys = std::make_unique<System>();
  at(sys.get());
  sys->context.traceEverOn(trace_file != nullptr);
  for (int i = 0; i < nodes; i++) {
    const std::string name = "node" + std::to_string(i);
    sys->station.push_back(std::make_unique<Vstation>(&sys->context, name.c_str()));
  }
  sys->net = std::make_unique<Vswitch>(&sys->context, "switch");
  sys->player.resize(nodes);
  sys->port = switch_ports(*sys->net);
  for (auto& s : sys->station) {
    s->rst = 1;
    s->ctl__b__ready = s->ctl__r__ready = 1;
  }
  sys->net->rst = 1;
#if VM_TRACE
  if (trace_file) {
    sys->trace = std::make_unique<Trace>();
    for (auto& s : sys->station) s->trace(sys->trace.get(), 99);
    sys->net->trace(sys->trace.get(), 99);
    sys->trace->open(trace_file);
  }
#endif
  return sys.release();
}

void tawny_free(void* handle) { delete &at(handle); }

void tawny_pins(void* handle, uint32_t stall, uint32_t seed, uint32_t seed_step, const uint32_t* probability) {
  System& sys = at(handle);
  uint32_t i = 0;
  for (auto& s : sys.station) {
    s->stall = stall;
    s->seed = seed + i++ * seed_step;
    s->p_drop = probability[0];
    s->p_dup = probability[1];
    s->p_reorder = probability[2];
    s->p_corrupt = probability[3];
  }
}

void tawny_reset(void* handle, int cycles) {
  System& sys = at(handle);
  for (auto& s : sys.station) s->rst = 1;
  sys.net->rst = 1;
  for (int i = 0; i < cycles; i++) sys.step();
  for (auto& s : sys.station) s->rst = 0;
  sys.net->rst = 0;
}

uint64_t tawny_cycles(void* handle) { return at(handle).cycle; }

// Give every frame of every link to `capture`, when its last beat moves: up links are 2 * node, down links 2 * node + 1.
void tawny_capture(void* handle, void (*capture)(uint64_t, uint32_t, const uint8_t*, uint32_t)) {
  System& sys = at(handle);
  sys.under_way.assign(2 * sys.station.size(), Frame{});
  sys.capture = capture;
}

// First byte of bank `bank` of node `node`'s memory, or null; `rows` gets its rows.
void* tawny_memory(void* handle, int node, int bank, uint64_t* rows) {
  System& sys = at(handle);
  const std::string scope = "node" + std::to_string(node) + ".Station.node.sram.bank" + std::to_string(bank);
  const VerilatedScope* s = sys.context.scopeFind(scope.c_str());
  if (!s) return nullptr;
  VerilatedVar* v = s->varFind("mem");
  if (!v) return nullptr;
  *rows = v->totalSize() / 64;
  return v->datap();
}

// Watch work queue `queue` of node `node` until the next tawny_unwatch; false when the model has no such queue. A tawny_run ends
// `settle` cycles after the first error of a queue watched: by then what it sets off at other nodes has arrived.
bool tawny_watch(void* handle, int node, int queue, uint64_t settle) {
  System& sys = at(handle);
  const std::string scope = "node" + std::to_string(node) + ".Station.node.me.queue" + std::to_string(queue);
  const VerilatedScope* s = sys.context.scopeFind(scope.c_str());
  const VerilatedVar* v = s ? s->varFind("state") : nullptr;
  if (!v) return false;
  sys.watched.push_back({static_cast<const uint8_t*>(v->datap()), uint32_t(node), uint32_t(queue)});
  sys.settle = settle;
  return true;
}

void tawny_unwatch(void* handle) { at(handle).watched.clear(); }

// Queues watched that were in error when the last run ended early, as node << 8 | queue, into `out`; how many.
int tawny_failed(void* handle, uint32_t* out) {
  int n = 0;
  for (const Watched& w : at(handle).watched)
    if (w.failed) out[n++] = w.node << 8 | w.queue;
  return n;
}

void tawny_scopes(void* handle) {
  System& sys = at(handle);
  sys.context.internalsDump();
}

// Play `n` register accesses (per node in order, nodes at the same time); then, if `events` is given, run until every node's event
// counter has reached events[node]. Returns the cycles that took, -1 when `deadline` cycles were not enough, or -2 when a queue
// watched went into error before (tawny_failed tells which were first).
int64_t tawny_run(void* handle, Command* commands, int n, const uint32_t* events, uint64_t deadline) {
  System& sys = at(handle);
  for (auto& p : sys.player) {
    p.list.clear();
    p.at = 0;
    p.waiting = false;
  }
  for (int i = 0; i < n; i++) sys.player[commands[i].node].list.push_back(&commands[i]);
  const uint64_t start = sys.cycle;
  uint64_t end = start + deadline;
  bool failed = false;
  for (;;) {
    const bool busy = n && sys.play();
    bool reached = true;
    if (events)
      for (size_t i = 0; reached && i < sys.station.size(); i++)
        reached = int32_t(sys.station[i]->event - events[i]) >= 0;
    if (!busy && reached) return int64_t(sys.cycle - start);
    if (sys.cycle >= end) return failed ? -2 : -1;
    if (events && !busy && !failed) {
      for (Watched& w : sys.watched) failed |= w.failed = *w.state & 1;
      if (failed && sys.settle < end - sys.cycle) end = sys.cycle + sys.settle;
    }
    sys.step();
  }
}

// Let `cycles` pass.
void tawny_idle(void* handle, uint64_t cycles) {
  System& sys = at(handle);
  for (uint64_t i = 0; i < cycles; i++) sys.step();
}
}
