// A random graph in the making, as ONNX text. The importer says what each node's results look like,
// and whether there may be such a node at all, and the interpreter what they are for the inputs
// drawn, so that what draws graphs knows no shape inference and no arithmetic.
#pragma once
#include <map>
#include <optional>
#include <set>

#include "engine/onnx/import.h"
#include "engine/semantics/semantics.h"
#include "tests/fuzz/values.h"

namespace ferrule::fuzz {

struct Value {
  std::string name;
  DType dtype = DType::undefined;
  Dims dims;
  bool exact = false;     ///< no rounding on the way here: what steps (Floor, Greater) may follow
  bool positive = false;  ///< what divisions by it, logarithms and powers of it may follow

  int rank() const { return static_cast<int>(dims.size()); }
  int64_t numel() const;
};

/// What a node may be, and what it computes.
struct Language {
  ImportOptions import;
  const Semantics* ops = nullptr;
};

/// A finished graph and values for its inputs.
struct Case {
  std::string text;
  std::string model;  ///< its bytes, where the text is only for people
  std::map<std::string, Tensor> inputs;
};

class Builder {
 public:
  static constexpr int64_t kLargest =
      200'000;  ///< elements of a value: the interpreter has to be through in no time

  Builder(Draw& draw, const Language& language) : draw(draw), language_(language) {}

  Value input(DType dtype, const Dims& dims, Mood mood);
  Value constant(DType dtype, const Dims& dims, Mood mood);
  Value literal(const std::vector<int64_t>& values);  ///< i64[n]: axes, shapes, pads
  Value literal_as(const Dims& dims, const std::vector<int64_t>& values);  ///< i64
  Value literal_of(DType dtype, const Dims& dims, double value);
  /// The values that a node makes; nullopt: the importer refuses it, and the graph is as before.
  /// `dtypes`: of the results; empty: one, of the first operand's type. A left-out operand has no
  /// name. `dims`: what the importer need not infer (what comes out of nested graphs).
  std::optional<std::vector<Value>> nodes(const std::string& op, const std::vector<Value>& operands,
                                          const std::string& attributes,
                                          std::vector<DType> dtypes = {},
                                          const std::vector<Dims>& dims = {});
  std::optional<Value> node(const std::string& op, const std::vector<Value>& operands,
                            const std::string& attributes = "", DType dtype = DType::undefined);
  void output(const Value& value);
  bool has_outputs() const { return !outputs_.empty(); }
  /// For the inputs drawn, as the interpreter computes it (values.h).
  bool says_nothing(const Value& value) const {
    return fuzz::says_nothing(elements_.at(value.name));
  }
  /// To go back to: what was drawn since is not in the graph.
  struct Mark {
    size_t lines, outputs;
    std::set<std::string> read;
  };
  Mark mark() const { return {lines_.size(), outputs_.size(), read_}; }
  void back_to(const Mark& mark);
  size_t lines() const { return lines_.size(); }
  /// The nodes from the `from`-th on, removed from the graph: a nested graph's. Their results are
  /// known there alone.
  std::vector<std::string> take(size_t from);
  void reads(const Value& value) { read_.insert(value.name); }  ///< a nested graph does
  bool is_read(const Value& value) const { return read_.contains(value.name); }
  std::string fresh(const char* prefix) { return prefix + std::to_string(++names_); }
  /// From here on some sizes of graph inputs are symbols.
  void open_sizes();
  Case finish() const;

  Draw& draw;
  DType dtype = DType::f32;    ///< of the graph's data
  Mood mood = Mood::plain;     ///< of values that nothing else asks for
  bool square = false;         ///< all sizes are one: operands fit in every way
  bool empty = false;          ///< some size may be 0
  int64_t side = 3;            ///< that size
  int64_t largest = kLargest;  ///< elements of a node's result
  std::map<std::string, int>
      refused;  ///< what the importer or the interpreter said, for a look at what is never drawn

  Mood finite() const { return mood == Mood::wild ? Mood::exact : mood; }
  /// A size: mostly small, often 1.
  int64_t size();

 private:
  std::string text(const std::vector<Value>& outputs, bool unfinished) const;
  /// The last node alone where the sizes of its results follow from those of its operands, else the
  /// whole graph so far.
  std::string probe(const std::vector<Value>& operands, const std::vector<Value>& results) const;

  struct Stored {
    Value value;
    Tensor elements;
    std::vector<std::string> sizes;  ///< as the graph declares them
  };
  /// The results of the graph that was probed.
  Result<std::vector<Tensor>> computed(const Graph& probed) const;

  Value stored(Stored constant);

  const Language& language_;
  std::map<std::string, Tensor> elements_;  ///< of every value, by name
  std::vector<Stored> inputs_, constants_;
  std::vector<std::string> lines_;
  std::vector<Value> outputs_;
  std::set<std::string> read_;  ///< values that nodes read; others are not written
  bool open_ = false;
  int names_ = 0;
};

}  // namespace ferrule::fuzz
