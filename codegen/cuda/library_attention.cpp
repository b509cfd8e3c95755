#include "codegen/cuda/library_attention.h"

#include <algorithm>

#include "engine/contract/attention.h"

namespace ferrule {
namespace {

using Part = LibraryAttention::Part;

/// Under axes of `rank`, the last two of them rows and columns, as four: [batch, heads, rows,
/// columns].
Part spread(size_t operand, std::vector<int64_t> dims, std::vector<int64_t> strides, size_t rank) {
  auto put = [&](size_t at) {
    dims.insert(dims.begin() + at, 1);
    strides.insert(strides.begin() + at, 1);
  };
  while (dims.size() < rank) put(0);
  while (dims.size() < 4) put(dims.size() == 3 ? 1 : 0);
  // A step along an axis of one element is never made, but must be one that could be.
  int64_t whole = 1;
  for (size_t k = 0; k < 4; ++k) whole = std::max(whole, dims[k] * strides[k]);
  for (size_t k = 0; k < 3; ++k)
    if (dims[k] == 1) strides[k] = whole;
  if (dims[3] == 1) strides[3] = 1;
  return {operand, std::move(dims), std::move(strides)};
}

class Chooser {
 public:
  Chooser(const Launch& launch, std::span<const CudaOperand> operands, const Attention& a)
      : launch_(launch), operands_(operands), a_(a) {}

  /// Why it is not cuDNN's; "": it is, and `out` says how.
  std::string run(LibraryAttention& out) const {
    for (const RoleTensor* t : {&a_.q, &a_.k, &a_.v, a_.mask ? &*a_.mask : nullptr})
      if (t && (t->slot >= launch_.inputs.size() || operands_[t->slot].dtype == DType::undefined))
        return "an operand is absent";
    out.q = part(a_.q, false), out.k = part(a_.k, true), out.v = part(a_.v, false),
    out.y = part(a_.y, false);
    out.scale = static_cast<float>(a_.scale);
    for (const Part* p : {&out.q, &out.k, &out.v, &out.y})
      if (std::string why = lies(*p); !why.empty()) return why;
    if (std::string why = fits(out); !why.empty() || !a_.mask) return why;
    out.mask = part(*a_.mask, false);
    return covers(*out.mask, {out.q.dims[0], out.q.dims[1], out.q.dims[2], out.k.dims[2]});
  }

 private:
  /// Under the role's axes; keys, which the products see turned, as rows.
  Part part(const RoleTensor& role, bool keys) const {
    const size_t at = role.slot + (role.result ? launch_.inputs.size() : 0);
    const CudaOperand& operand = operands_[at];
    auto [dims, strides] = role_strides(role, operand.dims, operand.strides);
    for (size_t k = 0; k < dims.size(); ++k)
      if (strides[k] == 0) dims[k] = 1;  // cuDNN broadcasts
    if (keys)
      std::swap(dims.end()[-1], dims.end()[-2]), std::swap(strides.end()[-1], strides.end()[-2]);
    return spread(at, std::move(dims), std::move(strides), static_cast<size_t>(a_.rank()));
  }

  static std::string lies(const Part& p) {
    if (std::ranges::any_of(p.dims, [](int64_t d) { return d < 1; })) return "an empty operand";
    if (p.strides[3] != 1) return "a head whose elements lie apart";
    for (size_t k = 0; k < 3; ++k)
      if (p.dims[k] > 1 && (p.strides[k] < 1 || p.strides[k] % kLibraryPack))
        return "heads that do not begin at multiples of 16 bytes";
    return {};
  }

  /// Heads of keys and values may be one for all queries.
  static std::string fits(const LibraryAttention& l) {
    const auto &q = l.q.dims, &k = l.k.dims, &v = l.v.dims, &y = l.y.dims;
    if (q[3] != k[3] || k[2] != v[2] || y[2] != q[2] || y[3] != v[3])
      return "sizes that do not fit";
    if (q[0] != y[0] || q[1] != y[1] || k[0] != q[0] || v[0] != q[0])
      return "a batch that is broadcast";
    if (k[1] != v[1] || (k[1] != q[1] && k[1] != 1)) return "heads that are broadcast";
    return {};
  }

  static std::string covers(const Part& mask, const std::vector<int64_t>& scores) {
    for (size_t k = 0; k < 4; ++k)
      if (mask.dims[k] != scores[k] && (mask.dims[k] != 1 || k == 3))
        return "a mask that is broadcast over the keys";
    if (mask.strides[3] != 1) return "a mask whose elements lie apart";
    return {};
  }

  const Launch& launch_;
  std::span<const CudaOperand> operands_;
  const Attention& a_;
};

}  // namespace

AttentionChoice choose_attention(const Launch& launch, std::span<const CudaOperand> operands,
                                 bool aligned, const Target& target, bool strict) {
  if (launch.kind != Launch::Kind::library || launch.work != Work::attention) return {};
  const Attention attention = attention_of(*launch.roles);
  if (Accept a = library_attends(*launch.graph, attention, target); a.truth != Truth::yes)
    return {{}, std::move(a.reason)};
  if (operands.size() != launch.graph->inputs().size() + 1) return {};
  if (strict)
    if (std::string why = attention_deviation(*launch.graph, attention, target); !why.empty())
      return {{}, "results are to be strict: " + why};
  if (!aligned) return {{}, "an operand that does not begin at a multiple of 16 bytes"};
  LibraryAttention library;
  std::string why = Chooser(launch, operands, attention).run(library);
  if (!why.empty()) return {{}, std::move(why)};
  return {std::move(library), {}};
}

}  // namespace ferrule
