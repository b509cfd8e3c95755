// A random graph in the making, as ONNX text. The importer says what each node's results look like, and whether there
// may be such a node at all, so that what draws graphs knows no shape inference.
#pragma once
#include <map>
#include <optional>
#include <set>

#include "engine/onnx/import.h"
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

/// A finished graph and values for its inputs.
struct Case {
  std::string text;
  std::map<std::string, Tensor> inputs;
  DType coarsest = DType::f32;  ///< the float type with the widest tolerance in it
};

class Builder {
 public:
  static constexpr int64_t kLargest = 200'000;  ///< elements of a value: the interpreter has to be through in no time

  Builder(Draw& draw, const ImportOptions& options) : draw(draw), options_(options) {}

  Value input(DType dtype, const Dims& dims, Mood mood);
  Value constant(DType dtype, const Dims& dims, Mood mood);
  Value literal(const std::vector<int64_t>& values);   ///< i64[n]: axes, shapes, pads
  Value literal_of(DType dtype, const Dims& dims, double value);
  /// The values that a node makes; nullopt: the importer refuses it, and the graph is as before. `dtypes`: of the
  /// results; empty: one, of the first operand's type. A left-out operand has no name.
  std::optional<std::vector<Value>> nodes(const std::string& op, const std::vector<Value>& operands, const std::string& attributes,
                                          std::vector<DType> dtypes = {});
  std::optional<Value> node(const std::string& op, const std::vector<Value>& operands, const std::string& attributes = "",
                            DType dtype = DType::undefined);
  void output(const Value& value);
  /// From here on some sizes of graph inputs are symbols.
  void open_sizes();
  Case finish() const;

  Draw& draw;
  DType dtype = DType::f32;    ///< of the graph's data
  Mood mood = Mood::plain;     ///< of values that nothing else asks for
  bool square = false;         ///< all sizes are one: operands fit in every way
  bool empty = false;          ///< some size may be 0
  int64_t side = 3;            ///< that size
  std::map<std::string, int> refused;  ///< what the importer said, for a look at what is never drawn

  Mood finite() const { return mood == Mood::wild ? Mood::exact : mood; }
  /// A size: mostly small, often 1.
  int64_t size();

 private:
  std::string text(const std::vector<Value>& outputs, bool unfinished) const;
  std::string fresh(const char* prefix) { return prefix + std::to_string(++names_); }

  struct Stored {
    Value value;
    Tensor elements;
    std::vector<std::string> sizes;  ///< as the graph declares them
  };
  const ImportOptions& options_;
  std::vector<Stored> inputs_, constants_;
  std::vector<std::string> lines_;
  std::vector<Value> outputs_;
  std::set<std::string> read_;  ///< values that nodes read; others are not written
  bool open_ = false;
  int names_ = 0;
};

}  // namespace ferrule::fuzz
