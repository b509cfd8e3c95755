#include "engine/reduce/state.h"

#include <xxhash.h>

#include "engine/base/diagnostics.h"
#include "engine/onnx/export.h"
#include "engine/onnx/import.h"

namespace ferrule::reduce {
namespace {

std::chrono::steady_clock::duration duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

}  // namespace

State::State(const Tensors& inputs, const Check& check, const Options& options)
    : check_(check),
      options_(options),
      end_(begin_ + duration(options.seconds)),
      inputs_(inputs),
      in_step_(!inputs.empty()) {}

Status State::start(const Graph& model) {
  nodes_before_ = count_nodes(model);
  FERRULE_ASSIGN(bytes_, export_bytes(model));  // its error says more than "no model"
  auto m = imported(model);
  if (!m)
    return error(Code::model_invalid, "reduce", std::string("written again, the model is refused"));
  graph_ = std::move(m->graph);
  bytes_ = std::move(m->bytes);
  seen(bytes_);
  FERRULE_ASSIGN(const bool there, shows({std::move(*graph_.clone()), bytes_}, inputs_));
  if (!there)
    return error(Code::usage, "reduce",
                 std::string("the check does not find the failure in the model itself"));
  return {};
}

const Values& State::values() {
  if (!values_) {
    Cancel time;  // the reduction is worth more than exact values
    time.deadline(std::chrono::steady_clock::now() + duration(options_.seconds / 4));
    InterpreterOptions o;
    o.ops = options_.ops, o.limits = options_.limits, o.cancel = &time;
    values_.emplace(graph_, inputs_, o);
  }
  return *values_;
}

std::optional<State::Model> State::imported(const Graph& g) const {
  auto bytes = export_bytes(g);
  if (!bytes) return std::nullopt;
  ImportOptions o;
  o.limits = options_.limits;
  o.ops = options_.ops;
  auto in = import_bytes(*bytes, o);
  if (!in || in->graph.live_nodes() == 0) return std::nullopt;
  auto again = export_bytes(in->graph);  // as the file will be
  if (!again) return std::nullopt;
  return Model{std::move(in->graph), std::move(*again)};
}

std::optional<State::Model> State::model_of(const Edit& edit) const {
  std::optional<Graph> g = rebuilt(graph_, edit);
  if (g) g = rebuilt(*g, {});  // an input that only a node without readers read is none
  return g ? imported(*g) : std::nullopt;
}

bool State::seen(const std::string& bytes) {
  return !seen_.insert(XXH3_64bits(bytes.data(), bytes.size())).second;
}

std::optional<Tensors> State::inputs_of(const Graph& g, const Tensors& changed) {
  Tensors out;
  if (!in_step_) return out;
  for (ValueId v : g.inputs()) {
    const std::string& name = g.value(v).name;
    if (auto it = changed.find(name); it != changed.end())
      out[name] = it->second;
    else if (auto old = inputs_.find(name); old != inputs_.end())
      out[name] = old->second;
    else if (const Tensor* t = values().computed(name))
      out[name] = *t;
    else if (auto random = stand_in(g.value(v).type, name))
      out[name] = std::move(*random);
    else
      return std::nullopt;
  }
  return out;
}

Result<bool> State::shows(const Model& m, const Tensors& inputs) {
  ++checks_;
  return check_(Candidate{m.graph, m.bytes, inputs});
}

State::Tried State::tried(const Edit& edit, const Tensors& inputs) {
  if (over()) return Tried::no_model;
  std::optional<Model> m = model_of(edit);
  if (!m) return ++refused_, Tried::no_model;
  if (seen(m->bytes)) return ++refused_, Tried::seen;
  std::optional<Tensors> in = inputs_of(m->graph, inputs);
  if (!in) return ++refused_, Tried::no_model;
  auto there = shows(*m, *in);
  if (!there) failed_ = std::move(there).error();
  if (!there || !*there) return Tried::absent;
  graph_ = std::move(m->graph);
  bytes_ = std::move(m->bytes);
  inputs_ = std::move(*in);
  values_.reset();
  ++accepted_;
  if (options_.log)
    options_.log(fmt::format("{} nodes, {} bytes after {} checks", count_nodes(graph_),
                             bytes_.size(), checks_));
  return Tried::smaller;
}

Result<Reduced> State::result(bool complete) {
  if (failed_) return fail(std::move(*failed_));
  Reduced r;
  r.nodes_before = nodes_before_, r.nodes = count_nodes(graph_);
  r.graph = std::move(graph_), r.bytes = std::move(bytes_), r.inputs = std::move(inputs_);
  r.checks = checks_, r.refused = refused_, r.complete = complete;
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return r;
}

void sweep(std::vector<std::string> items,
           const std::function<bool(std::span<const std::string>)>& without) {
  for (size_t size = items.size(); size > 0; size /= 2)
    for (size_t end = items.size(); end > 0;) {
      const size_t begin = end > size ? end - size : 0;
      const auto first = items.begin() + begin, last = items.begin() + end;
      if (without({first, last})) items.erase(first, last);
      end = begin;
    }
}

}  // namespace ferrule::reduce
