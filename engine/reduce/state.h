// The model as small as it is so far, and how a smaller one is tried; internal to engine/reduce.
// What passes work on they know by name, since every model that is accepted is a new graph.
#pragma once
#include <chrono>
#include <optional>
#include <span>
#include <unordered_set>

#include "engine/reduce/edit.h"
#include "engine/reduce/options.h"

namespace ferrule::reduce {

class State {
 public:
  State(const Tensors& inputs, const Check& check, const Options& options);
  /// The model itself. errors: usage, where it does not show the failure.
  Status start(const Graph& model);

  const Graph& graph() const { return graph_; }
  const Tensors& inputs() const { return inputs_; }
  /// Of the present model; made when first asked for.
  const Values& values();
  bool over() const {
    return failed_ || (options_.cancel && options_.cancel->stopped()) ||
           std::chrono::steady_clock::now() >= end_;
  }
  int accepted() const { return accepted_; }

  /// Whether the graph so edited is a model.
  bool valid(const Edit& edit) const { return model_of(edit).has_value(); }
  enum class Tried : uint8_t { no_model, seen, absent, smaller };
  /// The graph so edited, if it is a model not seen before that still shows the failure, is the new
  /// one (smaller). `inputs`: of graph inputs that become others.
  Tried tried(const Edit& edit, const Tensors& inputs = {});
  bool attempt(const Edit& edit, const Tensors& inputs = {}) {
    return tried(edit, inputs) == Tried::smaller;
  }

  Result<Reduced> result(bool complete);

 private:
  struct Model {
    Graph graph;
    std::string bytes;
  };
  std::optional<Model> model_of(const Edit& edit) const;
  std::optional<Model> imported(const Graph& g) const;
  std::optional<Tensors> inputs_of(const Graph& g, const Tensors& changed);
  Result<bool> shows(const Model& m, const Tensors& inputs);
  bool seen(const std::string& bytes);

  const Check& check_;
  const Options& options_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), end_;
  Graph graph_;
  std::string bytes_;
  Tensors inputs_;
  bool in_step_;  ///< inputs are given, so every candidate has some
  std::optional<Values> values_;
  std::unordered_set<uint64_t> seen_;
  std::optional<Error> failed_;  ///< of the check
  size_t nodes_before_ = 0;
  int checks_ = 0, refused_ = 0, accepted_ = 0;
};

/// Takes away as many of the items as it can, by halves of them, then quarters, at last one by one,
/// from the back. `without` tries to, and says whether it could.
void sweep(std::vector<std::string> items,
           const std::function<bool(std::span<const std::string>)>& without);

/// A graph of the model and how it is reached: the outermost, or nested ones of its nodes.
struct Place {
  const Graph* graph = nullptr;
  std::string path;  ///< empty: the outermost
};
std::vector<Place> places(const Graph& g);
/// Nodes, nested graphs' included.
size_t count_nodes(const Graph& g);
/// "path/name" of every node, nested graphs' too, in order.
std::vector<std::string> all_nodes(const Graph& g);
/// The graph and node of such a name.
std::optional<std::pair<const Graph*, NodeId>> node_at(const Graph& g, const std::string& at);

// --- passes; each leaves `s` with a model that is no larger
void cut_nodes(State& s);      ///< what is left reads inputs and constants in their place
void inline_graphs(State& s);  ///< branches and loop bodies in the place of what runs them
void bypass_nodes(State& s);   ///< their readers read what they read
void drop_outputs(State& s);   ///< of the graph, and of nodes where nothing reads them
void drop_details(State& s);   ///< optional operands, attributes that are not at their defaults
void join_inputs(State& s);    ///< one input in the place of two
void shrink(State& s);         ///< sizes of inputs and constants, and the numbers that go with them

}  // namespace ferrule::reduce
