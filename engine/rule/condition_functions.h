// The functions of the condition language; internal to engine/rule. condition_functions.cpp joins
// the tables of condition_functions_*.cpp; a function gets its arguments evaluated, none of them
// unknown, and none absent unless its row says so.
#pragma once
#include <span>

#include "engine/rule/val.h"
#include "engine/rule/vocabulary.h"

namespace ferrule {

using Args = std::span<const Val>;
constexpr bool kMissingToo = true;  // for Function::takes_missing

struct Function {
  VocabularyEntry entry;  ///< signature: "(x: value, k: number, rtol: number = 0.001) -> bool"
  Val (*call)(const EvalContext& ctx, Args args) = nullptr;
  bool takes_missing = false;      ///< also called with absent and unknown arguments
  int min_args = 0, max_args = 0;  ///< read off the signature
  std::vector<std::string_view> wanted =
      {};  ///< kinds of the parameters; the last repeats for "..."
};

const std::vector<Function>& functions();
const Function* find_function(std::string_view name);

/// Words that stand for themselves: element types, broadcast kinds, device kinds, true, false, inf.
std::optional<Val> word(std::string_view name);
/// Facts that are read like names: device, profile, cc, l2_bytes, cores, vector_bytes, target.
bool is_fact(std::string_view name);
Val fact(std::string_view name, const EvalContext& ctx);
std::vector<std::string> word_names();

// --- the tables, one file each
std::span<const Function> shape_functions();
std::span<const Function> constant_functions();
std::span<const Function> node_functions();
std::span<const Function> graph_functions();
std::span<const Function> layout_functions();

// --- helpers the functions share
inline Val unknown(std::string fact) { return Val{Val::Unknown{std::move(fact)}}; }
inline Val make_list(Val::List items) { return Val{std::make_shared<Val::List>(std::move(items))}; }
Val make_dim(const Dim& d);  ///< an int64 when constant
Val make_truth(Truth t, std::string_view fact);
Val from_attr(const Attr& a);
template <class T>
const T* get(const Val& v) {
  return std::get_if<T>(&v.v);
}
inline const Val::List* list_of(const Val& v) {
  auto p = get<std::shared_ptr<Val::List>>(v);
  return p ? p->get() : nullptr;
}
/// The value that an argument names; nullptr where it names none.
inline const Value* value_of(const EvalContext& ctx, const Val& v) {
  auto id = get<ValueId>(v);
  return id ? &ctx.graph.value(*id) : nullptr;
}
inline bool is_unknown(const Val& v) { return get<Val::Unknown>(v); }
inline bool is_absent(const Val& v) { return get<Val::Absent>(v); }
std::optional<Dim> as_dim(const Val& v);        ///< int64 and Dim
std::optional<double> as_number(const Val& v);  ///< int64 and double
std::optional<std::vector<int64_t>> as_ints(const Val& v);
Val ints(const std::vector<int64_t>& v);
/// "x", quoted and escaped, for messages about missing facts.
std::string quoted(const EvalContext& ctx, ValueId v);

/// yes / no / unknown with the missing fact in `why`.
Truth compare_equal(const EvalContext& ctx, const Val& a, const Val& b, std::string* why);
/// The single element of a constant; other values pass through unchanged.
Val element_of(const EvalContext& ctx, const Val& v);
/// Unknown where it is beyond i64.
Val element(const Tensor& t, int64_t i);

}  // namespace ferrule
