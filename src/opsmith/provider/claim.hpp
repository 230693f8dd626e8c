// Which nodes of ONNX Runtime's graph each compiled region replaces.
//
// By the time the provider sees the graph, ORT has rewritten it: nodes were folded and fused, but a value that still has its name is
// still the same value. A region computes its outputs from its inputs, whatever lies between them. So:
//
//   live    walk back from what the graph must give; at an output of a region go on from the region's inputs. The nodes met
//           this way must run. All others are either computed inside a region or needed by nobody.
//   inside  of a region: walk back from its outputs over nodes that are not live, as far as its inputs
//   given   up: a region whose inputs are gone, or that would wait for itself; then all again without it
//
// A fused node may have more inputs and outputs than its region: values between two regions' insides, which neither looks at.
#pragma once

#include "ep_abi.hpp"
#include "small.hpp"

namespace opsmith {

struct GraphNode {
  const OrtNode* node;
  size_t inputs, outputs;  // ends of its pieces of Graph::reads and Graph::writes
};

struct Graph {
  Names values;
  List<GraphNode> nodes;
  List<int> reads, writes;  // values, of one node after the other
  List<int> producer;       // of each value: a node, or -1
  List<int> readers;        // of each value: how many
  List<char> constant;
  List<int> outputs;

  // Null if all went well.
  OrtStatus* read(const Api& api, const OrtGraph* graph) {
    size_t count = 0;
    if (OrtStatus* s = api.call<OrtStatus*>(344, graph, &count)) return s;
    List<const OrtNode*> list;
    list.fill(count, nullptr);
    if (OrtStatus* s = api.call<OrtStatus*>(345, graph, list.data, count)) return s;
    for (const OrtNode* node : list) {
      if (OrtStatus* s = values_of(api, node, 353, 354, reads)) return s;
      if (OrtStatus* s = values_of(api, node, 357, 358, reads)) return s;  // what its bodies read
      const size_t first = writes.size;
      if (OrtStatus* s = values_of(api, node, 355, 356, writes)) return s;
      for (size_t i = first; i < writes.size; ++i) producer[size_t(writes[i])] = static_cast<int>(nodes.size);
      nodes.push({node, reads.size, writes.size});
    }
    for (int v : reads) ++readers[size_t(v)];
    if (OrtStatus* s = values_of(api, graph, 340, 341, outputs)) return s;
    List<int> inputs;  // they count as values even if nobody reads them
    return values_of(api, graph, 338, 339, inputs);
  }

  const int* reads_of(size_t n) const { return reads.data + (n ? nodes[n - 1].inputs : 0); }
  const int* reads_end(size_t n) const { return reads.data + nodes[n].inputs; }
  const int* writes_of(size_t n) const { return writes.data + (n ? nodes[n - 1].outputs : 0); }
  const int* writes_end(size_t n) const { return writes.data + nodes[n].outputs; }

 private:
  // The values of a node or graph, through two slots: how many, and which.
  template <class Owner>
  OrtStatus* values_of(const Api& api, const Owner* owner, int count_slot, int slot, List<int>& into) {
    size_t count = 0;
    if (OrtStatus* s = api.call<OrtStatus*>(count_slot, owner, &count)) return s;
    List<const OrtValueInfo*> infos;
    infos.fill(count, nullptr);
    if (count)
      if (OrtStatus* s = api.call<OrtStatus*>(slot, owner, infos.data, count)) return s;
    for (const OrtValueInfo* info : infos) {
      const char* name = nullptr;
      if (!info) continue;  // an optional input that is not given
      if (OrtStatus* s = api.call<OrtStatus*>(289, info, &name)) return s;
      const int value = values.add(name);
      if (static_cast<size_t>(value) == producer.size) {
        bool is_constant = false;
        if (OrtStatus* s = api.call<OrtStatus*>(331, info, &is_constant)) return s;
        producer.push(-1), readers.push(0), constant.push(is_constant);
      }
      into.push(value);
    }
    return nullptr;
  }
};

struct Claims {
  const Graph& graph;
  const Regions& table;
  List<int> regions;          // that are claimed
  List<List<int>*> inside;    // of each region of the table: its nodes
  List<Text*> reasons;        // of each region of the table: why it is not claimed; null if it is, or is not in this graph

  Claims(const Graph& g, const Regions& t) : graph(g), table(t) {
    inside.fill(t.count, nullptr);
    reasons.fill(t.count, nullptr);
  }
  Claims(const Claims&) = delete;
  ~Claims() {
    for (uint32_t r = 0; r < table.count; ++r) forget(r);
  }

  // PRESENT: the regions that lie in this graph and are not compiled yet.
  void make(const List<int>& present) {
    for (int r : present)
      if (Text why = unclaimable(r); why.empty())
        regions.push(r);
      else
        give_up(r, static_cast<Text&&>(why));
    while (!settle()) {
    }
  }

 private:
  List<int> owner;  // of each value: the region that gives it, or -1
  List<int> unit;   // of each node: the region that it is inside of, kLive, or kNobody
  static constexpr int kLive = -1, kNobody = -2;

  void forget(uint32_t r) {
    if (inside[r]) destroy(inside[r]), inside[r] = nullptr;
    if (reasons[r]) destroy(reasons[r]), reasons[r] = nullptr;
  }
  void give_up(int r, Text why) {
    forget(static_cast<uint32_t>(r));
    reasons[size_t(r)] = opsmith::make<Text>();
    *reasons[size_t(r)] = static_cast<Text&&>(why);
  }
  void drop(int r, Text why) {
    List<int> rest;
    for (int other : regions)
      if (other != r) rest.push(other);
    regions = static_cast<List<int>&&>(rest);
    if (!why.empty()) give_up(r, static_cast<Text&&>(why));
  }
  const RegionOp& op(int r) const { return table.regions[r]; }
  int value(const char* name) const { return graph.values.find(name); }

  Text unclaimable(int r) const {
    const RegionOp& region = op(r);
    for (size_t i = 0; i < region.weight_input; ++i) {
      const int v = value(region.input_names[i]);
      if (v < 0) return line("its input %s is gone: ONNX Runtime fused or folded it", region.input_names[i]);
      if (graph.constant[size_t(v)]) return line("its input %s is a constant for ONNX Runtime", region.input_names[i]);
    }
    for (size_t i = 0; i < region.outputs; ++i)
      if (const int v = value(region.output_names[i]); v >= 0 && graph.producer[size_t(v)] >= 0) return Text();
    return line("its output %s is gone: ONNX Runtime fused or folded it", region.output_names[0]);
  }

  // One look at the regions that are left; false if one had to go.
  bool settle() {
    owner.fill(graph.values.names.size, -1);
    for (int r : regions)
      for (size_t i = 0; i < op(r).outputs; ++i)
        if (const int v = value(op(r).output_names[i]); v >= 0) owner[size_t(v)] = r;
    List<char> needed;
    find_live(needed);
    for (int r : regions)
      if (!needed[size_t(r)]) return drop(r, Text("nothing reads what it gives")), false;
    return assign_outputs() && find_inside() && in_order();
  }

  void find_live(List<char>& needed) {
    unit.fill(graph.nodes.size, kNobody);
    needed.fill(table.count, 0);
    List<int> pending;
    for (int v : graph.outputs) pending.push(v);
    const auto live = [&](size_t n) {
      if (unit[n] == kLive) return;
      unit[n] = kLive;
      for (const int* v = graph.reads_of(n); v != graph.reads_end(n); ++v) pending.push(*v);
    };
    for (size_t n = 0; n < graph.nodes.size; ++n) {  // a node that nobody reads runs all the same
      bool read = false;
      for (const int* v = graph.writes_of(n); v != graph.writes_end(n); ++v)
        read |= graph.readers[size_t(*v)] > 0 || graph.outputs.has(*v);
      if (!read) live(n);
    }
    while (pending.size) {
      const size_t v = static_cast<size_t>(pending.pop());
      const int r = owner[v];
      if (r < 0) {
        if (graph.producer[v] >= 0) live(static_cast<size_t>(graph.producer[v]));
      } else if (!needed[size_t(r)]) {
        needed[size_t(r)] = 1;
        for (size_t i = 0; i < op(r).weight_input; ++i) pending.push(value(op(r).input_names[i]));
      }
    }
  }

  bool assign_outputs() {
    for (int r : regions)
      for (size_t i = 0; i < op(r).outputs; ++i) {
        const int v = value(op(r).output_names[i]);
        const int n = v < 0 ? -1 : graph.producer[size_t(v)];
        if (n < 0) continue;
        if (unit[size_t(n)] != kNobody && unit[size_t(n)] != r)
          return drop(r, line("the node of its output %s also gives what others need", op(r).output_names[i])), false;
        unit[size_t(n)] = r;
      }
    return true;
  }

  bool find_inside() {
    for (int r : regions) {
      forget(static_cast<uint32_t>(r));
      List<int>& mine = *(inside[size_t(r)] = opsmith::make<List<int>>());
      List<int> inputs;
      for (size_t i = 0; i < op(r).weight_input; ++i) inputs.push(value(op(r).input_names[i]));
      for (size_t n = 0; n < graph.nodes.size; ++n)
        if (unit[n] == r) mine.push(static_cast<int>(n));
      List<char> read;
      read.fill(inputs.size, 0);
      for (size_t done = 0; done < mine.size; ++done) {
        const size_t n = static_cast<size_t>(mine[done]);
        for (const int* v = graph.reads_of(n); v != graph.reads_end(n); ++v) {
          bool is_input = false;
          for (size_t i = 0; i < inputs.size; ++i)
            if (inputs[i] == *v) read[i] = is_input = true;
          const int before = graph.producer[size_t(*v)];
          if (is_input || before < 0 || owner[size_t(*v)] >= 0 || unit[size_t(before)] != kNobody) continue;
          unit[size_t(before)] = r;
          mine.push(before);
        }
      }
      for (size_t i = 0; i < inputs.size; ++i)
        if (!read[i])
          return drop(r, line("ONNX Runtime no longer computes it from its input %s", op(r).input_names[i])), false;
    }
    return true;
  }

  // Whether nodes and regions can run one after the other.
  bool in_order() {
    const size_t count = graph.nodes.size + table.count;  // a unit is a node, or a region behind them
    const auto unit_of = [&](int n) {
      const int r = unit[size_t(n)];
      return r >= 0 ? graph.nodes.size + static_cast<size_t>(r) : static_cast<size_t>(n);
    };
    List<int> waits;
    waits.fill(count, 0);
    const auto each_edge = [&](auto&& act) {
      for (size_t n = 0; n < graph.nodes.size; ++n)
        for (const int* v = graph.reads_of(n); v != graph.reads_end(n); ++v)
          if (const int before = graph.producer[size_t(*v)]; before >= 0)
            if (const size_t a = unit_of(before), b = unit_of(static_cast<int>(n)); a != b) act(a, b);
    };
    List<size_t> first, targets;  // of each unit: where its edges begin, and where they lead
    first.fill(count + 1, 0);
    each_edge([&](size_t a, size_t b) { ++first[a + 1], ++waits[b]; });
    for (size_t u = 0; u < count; ++u) first[u + 1] += first[u];
    targets.fill(first[count], 0);
    List<size_t> at;
    for (size_t u = 0; u < count; ++u) at.push(first[u]);
    each_edge([&](size_t a, size_t b) { targets[at[a]++] = b; });
    List<size_t> ready;
    for (size_t u = 0; u < count; ++u)
      if (!waits[u]) ready.push(u);
    for (size_t done = 0; done < ready.size; ++done)
      for (size_t e = first[ready[done]]; e < first[ready[done] + 1]; ++e)
        if (!--waits[targets[e]]) ready.push(targets[e]);
    for (int r : regions)
      if (waits[graph.nodes.size + size_t(r)]) return drop(r, Text("it would wait for nodes that wait for it")), false;
    return true;
  }
};

}  // namespace opsmith
