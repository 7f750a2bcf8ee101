// One model of a whole system (rtl/chip/system.py), driven through the C functions of tb/chip/executor.cpp: what the executor must equal.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "Vsystem.h"
#include "verilated.h"
#include "verilated_sym_props.h"
#include "verilated_syms.h"

namespace {

struct Command {  // mirrors tb/chip/executor.py
  uint32_t node, write, addr, data, value, resp;
};

struct Node {  // control port and event counter of a node
  uint8_t *aw_valid, *aw_ready, *w_valid, *w_ready, *b_ready, *b_valid, *ar_valid, *ar_ready, *r_ready, *r_valid, *b_payload;
  uint32_t *aw_payload, *ar_payload;
  uint64_t *w_payload, *r_payload;
  uint32_t* event;
};

#include "nodes.h"  // generated: nodes(Vsystem&)

struct Watched {  // mirrors tb/chip/executor.cpp
  const uint8_t* state;
  uint32_t node, queue;
  bool failed = false;
};

struct System {
  VerilatedContext context;
  std::unique_ptr<Vsystem> model;
  std::vector<Node> node;
  std::vector<Watched> watched;
  uint64_t settle = 0;
  uint64_t cycle = 0;

  // One cycle; an address or data word leaves its port when it was ready before the edge.
  void step() {
    std::vector<uint8_t> aw, w, ar;
    for (Node& n : node) aw.push_back(*n.aw_ready), w.push_back(*n.w_ready), ar.push_back(*n.ar_ready);
    model->clk = 1;
    model->eval();
    for (size_t i = 0; i < node.size(); i++) {
      if (aw[i]) *node[i].aw_valid = 0;
      if (w[i]) *node[i].w_valid = 0;
      if (ar[i]) *node[i].ar_valid = 0;
    }
    model->clk = 0;
    model->eval();
    cycle++;
  }
};

}  // namespace

extern "C" {

void* tawny_new(int, const char*) {
  auto sys = std::make_unique<System>();
  sys->model = std::make_unique<Vsystem>(&sys->context, "one");
  sys->node = nodes(*sys->model);
  sys->model->rst = 1;
  for (Node& n : sys->node) *n.b_ready = *n.r_ready = 1;
  return sys.release();
}

void tawny_free(void* handle) {
  System* sys = static_cast<System*>(handle);
  Verilated::threadContextp(&sys->context);
  delete sys;
}

void tawny_pins(void* handle, uint32_t stall, uint32_t seed, uint32_t, const uint32_t* p) {
  Vsystem& m = *static_cast<System*>(handle)->model;
  m.stall = stall, m.seed = seed;
  m.p_drop = p[0], m.p_dup = p[1], m.p_reorder = p[2], m.p_corrupt = p[3];
}

void tawny_reset(void* handle, int cycles) {
  System& sys = *static_cast<System*>(handle);
  sys.model->rst = 1;
  for (int i = 0; i < cycles; i++) sys.step();
  sys.model->rst = 0;
}

uint64_t tawny_cycles(void* handle) { return static_cast<System*>(handle)->cycle; }

void* tawny_memory(void* handle, int node, int bank, uint64_t* rows) {
  System& sys = *static_cast<System*>(handle);
  const std::string name = "one.System.station" + std::to_string(node) + ".node.sram.bank" + std::to_string(bank);
  const VerilatedScope* s = sys.context.scopeFind(name.c_str());
  VerilatedVar* v = s ? s->varFind("mem") : nullptr;
  if (!v) return nullptr;
  *rows = v->totalSize() / 64;
  return v->datap();
}

bool tawny_watch(void* handle, int node, int queue, uint64_t settle) {
  System& sys = *static_cast<System*>(handle);
  const std::string name = "one.System.station" + std::to_string(node) + ".node.me.queue" + std::to_string(queue);
  const VerilatedScope* s = sys.context.scopeFind(name.c_str());
  VerilatedVar* v = s ? s->varFind("state") : nullptr;
  if (!v) return false;
  sys.watched.push_back({static_cast<const uint8_t*>(v->datap()), uint32_t(node), uint32_t(queue)});
  sys.settle = settle;
  return true;
}

void tawny_unwatch(void* handle) { static_cast<System*>(handle)->watched.clear(); }

int tawny_failed(void* handle, uint32_t* out) {
  int n = 0;
  for (const Watched& w : static_cast<System*>(handle)->watched)
    if (w.failed) out[n++] = w.node << 8 | w.queue;
  return n;
}

int64_t tawny_run(void* handle, Command* commands, int n, const uint32_t* events, uint64_t deadline) {
  System& sys = *static_cast<System*>(handle);
  std::vector<std::vector<Command*>> list(sys.node.size());
  std::vector<size_t> at(sys.node.size(), 0);
  std::vector<bool> waiting(sys.node.size(), false);
  for (int i = 0; i < n; i++) list[commands[i].node].push_back(&commands[i]);
  bool failed = false;
  uint64_t end = sys.cycle + deadline;
  for (const uint64_t start = sys.cycle;; sys.step()) {
    bool busy = false, reached = true;
    for (size_t i = 0; i < sys.node.size(); i++) {
      Node& m = sys.node[i];
      if (at[i] < list[i].size()) {
        Command& c = *list[i][at[i]];
        busy = true;
        if (!waiting[i]) {
          waiting[i] = true;
          if (c.write) {
            *m.aw_payload = c.addr, *m.w_payload = 0xFull << 32 | c.data;
            *m.aw_valid = *m.w_valid = 1;
          } else {
            *m.ar_payload = c.addr, *m.ar_valid = 1;
          }
        } else if (c.write ? *m.b_valid : *m.r_valid) {
          c.resp = c.write ? *m.b_payload : *m.r_payload >> 32 & 3;
          c.value = c.write ? 0 : uint32_t(*m.r_payload);
          waiting[i] = false;
          at[i]++;
        }
      }
      if (events) reached = reached && int32_t(*m.event - events[i]) >= 0;
    }
    if (!busy && reached) return int64_t(sys.cycle - start);
    if (sys.cycle >= end) return failed ? -2 : -1;
    if (events && !busy && !failed) {
      for (Watched& w : sys.watched)
        if (*w.state & 1) failed = w.failed = true;
      if (failed && end - sys.cycle > sys.settle) end = sys.cycle + sys.settle;
    }
  }
}

void tawny_idle(void* handle, uint64_t cycles) {
  for (uint64_t i = 0; i < cycles; i++) static_cast<System*>(handle)->step();
}
}
