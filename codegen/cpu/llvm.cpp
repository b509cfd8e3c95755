#include "codegen/cpu/llvm.h"

#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "codegen/cpu/llvm_primitives.h"
#include "engine/base/diagnostics.h"
#include "engine/semantics/polynomials.h"

namespace ferrule {
namespace {

using llvm::BasicBlock;
using llvm::Value;

constexpr int kNonTemporalAlign = 64;
constexpr size_t kLong =
    400;  // instructions: more than hide each other's latencies, and slow to compile

bool can_hold(DType t) {
  return t == DType::boolean ||
         ((is_float(t) || is_int(t)) && size_bits(t) >= 8 && t != DType::f8e8m0);
}

/// One kernel as an LLVM function: rows; in a row a main loop of `unroll_` vectors and a masked
/// loop for the rest, so that small rows cost one masked step and code stays small.
class KernelEmitter {
 public:
  KernelEmitter(const KernelKey& key, const Program& program, const CpuIsa& isa,
                llvm::Module& module)
      : key_(key),
        p_(program),
        isa_(isa),
        module_(module),
        b_(module.getContext()),
        lanes_(choose_lanes()),
        unroll_(choose_unroll()),
        prim_(b_, isa, lanes_) {}

  void emit(std::string_view symbol) {
    auto* ptr = b_.getPtrTy();
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, ptr, ptr}, false);
    fn_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage,
                                 llvm::StringRef(symbol.data(), symbol.size()), module_);
    fn_->setDoesNotThrow();
    fn_->addFnAttr("prefer-vector-width", std::to_string(isa_.vector_bytes * 8));
    fn_->addFnAttr("min-legal-vector-width", std::to_string(isa_.vector_bytes * 8));
    b_.SetInsertPoint(block("entry"));
    i64_ = b_.getInt64Ty();
    Value* outer = b_.CreateLoad(i64_, at(fn_->getArg(1), 0));
    inner_ = b_.CreateLoad(i64_, at(fn_->getArg(1), 1));
    for (size_t k = 0; k < operands(); ++k) {
      bases_.push_back(b_.CreateLoad(ptr, at(fn_->getArg(0), k)));
      row_strides_.push_back(b_.CreateLoad(i64_, at(fn_->getArg(2), k)));
      steps_.push_back(key_.inner[k] == InnerStride::strided
                           ? b_.CreateLoad(i64_, at(fn_->getArg(3), k))
                           : nullptr);
    }
    if (key_.fold_outer)
      emit_columns(outer);
    else
      loop(b_.getInt64(0), outer, 1, "row", [&](Value* row) { emit_row(row); });
    if (key_.non_temporal) b_.CreateIntrinsic(llvm::Intrinsic::x86_sse_sfence, {}, {});
    b_.CreateRetVoid();
  }

 private:
  size_t operands() const { return p_.inputs.size() + p_.outputs.size(); }
  DType operand_type(size_t k) const { return p_.operand_type(k); }
  int64_t element_bytes(size_t k) const { return size_bytes(operand_type(k), 1); }

  unsigned choose_lanes() const {
    int widest = 1;
    for (const Inst& in : p_.insts)
      if (in.type != DType::boolean) widest = std::max(widest, size_bits(in.type) / 8);
    return static_cast<unsigned>(isa_.vector_bytes / widest);
  }
  /// As many vectors at once as registers roughly hold: the more, the better latencies overlap.
  unsigned choose_unroll() const {
    for (const Inst& in : p_.insts)
      if (PrimitiveEmitter::calls(in, operand_of(in))) return 1;
    int registers =
        isa_.vector_bytes == 64 ? 48 : 24;  // half as many again: spilling a few is cheaper
    int live = std::max(1, varying_live());
    for (size_t k = 0; k < p_.outputs.size(); ++k)
      if (fold(k) != Fold::none)
        live += size_bits(accumulator(k)) / size_bits(p_.output_type(k)) - 1;
    unsigned most = p_.insts.size() > kLong ? 1 : p_.insts.size() > 150 ? 2 : 4;
    return std::min(most, live * 4 <= registers ? 4u : live * 2 <= registers ? 2u : 1u);
  }
  /// Most values that are alive at once and differ along the row.
  int varying_live() const {
    std::vector<size_t> last(p_.insts.size());
    std::vector<bool> varies(p_.insts.size());
    for (size_t k = 0; k < p_.insts.size(); ++k) {
      const Inst& in = p_.insts[k];
      varies[k] = in.op == Prim::load && key_.inner[in.index] != InnerStride::broadcast;
      last[k] = k;
      for (int a = 0; a < info(in.op).arity; ++a) {
        uint32_t arg = in.args[a];
        varies[k] = varies[k] || varies[arg];
        last[arg] = k;
      }
    }
    for (uint32_t o : p_.outputs) last[o] = p_.insts.size();
    int live = 0, most = 0;
    std::vector<int> ends(p_.insts.size() + 1, 0);
    for (size_t k = 0; k < p_.insts.size(); ++k) {
      if (varies[k]) ++ends[last[k]], most = std::max(most, ++live);
      live -= ends[k];
    }
    return most;
  }
  DType operand_of(const Inst& in) const {
    return info(in.op).arity ? p_.insts[in.args[0]].type : in.type;
  }

  Fold fold(size_t output) const {
    return output < key_.folds.size() ? key_.folds[output] : Fold::none;
  }
  DType accumulator(size_t output) const { return fold_type(fold(output), p_.output_type(output)); }
  bool folds() const {
    return std::ranges::any_of(key_.folds, [](Fold f) { return f != Fold::none; });
  }

  BasicBlock* block(const char* name) {
    return BasicBlock::Create(module_.getContext(), name, fn_);
  }
  Value* at(Value* array, size_t k) { return b_.CreateConstGEP1_64(b_.getInt64Ty(), array, k); }

  /// for (i = begin; i < end; i += step) body(i). Gives nothing; continues after the loop.
  template <class Body>
  void loop(Value* begin, Value* end, int64_t step, const char* name, Body&& body) {
    carry(begin, end, step, name, {}, [&](Value* i, const std::vector<Value*>&) {
      body(i);
      return std::vector<Value*>();
    });
  }

  /// The same with values carried from one iteration to the next; gives the last ones.
  template <class Body>
  std::vector<Value*> carry(Value* begin, Value* end, int64_t step, const char* name,
                            const std::vector<Value*>& first, Body&& body) {
    BasicBlock *from = b_.GetInsertBlock(), *head = block(name), *after = block("done");
    b_.CreateCondBr(b_.CreateICmpSLT(begin, end), head, after);
    b_.SetInsertPoint(head);
    llvm::PHINode* i = b_.CreatePHI(i64_, 2);
    i->addIncoming(begin, from);
    std::vector<llvm::PHINode*> carried;
    for (Value* v : first) {
      carried.push_back(b_.CreatePHI(v->getType(), 2));
      carried.back()->addIncoming(v, from);
    }
    std::vector<Value*> next = body(i, std::vector<Value*>(carried.begin(), carried.end()));
    BasicBlock* latch = b_.GetInsertBlock();
    Value* stepped = b_.CreateAdd(i, b_.getInt64(static_cast<uint64_t>(step)));
    i->addIncoming(stepped, latch);
    for (size_t k = 0; k < next.size(); ++k) carried[k]->addIncoming(next[k], latch);
    b_.CreateCondBr(b_.CreateICmpSLT(stepped, end), head, after);
    b_.SetInsertPoint(after);
    std::vector<Value*> last;
    for (size_t k = 0; k < next.size(); ++k) {
      llvm::PHINode* v = b_.CreatePHI(next[k]->getType(), 2);
      v->addIncoming(first[k], from);
      v->addIncoming(next[k], latch);
      last.push_back(v);
    }
    return last;
  }

  int64_t step() const { return static_cast<int64_t>(lanes_ * unroll_); }
  /// Where the steps of the main loop end.
  Value* whole_steps() { return b_.CreateAnd(inner_, b_.getInt64(static_cast<uint64_t>(-step()))); }

  void start_row(Value* row) {
    rows_.clear();
    for (size_t k = 0; k < operands(); ++k)
      rows_.push_back(b_.CreateGEP(b_.getInt8Ty(), bases_[k], b_.CreateMul(row, row_strides_[k])));
    emit_uniform();
  }

  void emit_row(Value* row) {
    start_row(row);
    if (folds()) return fold_row();
    Value* main_end = whole_steps();
    if (key_.non_temporal) main_end = b_.CreateSelect(rows_aligned(), main_end, b_.getInt64(0));
    if (masked_only())
      main_end = b_.getInt64(0);
    else
      loop(b_.getInt64(0), main_end, step(), "main",
           [&](Value* i) { emit_elements(starts_at(i), nullptr); });
    loop(main_end, inner_, static_cast<int64_t>(lanes_), "rest",
         [&](Value* i) { emit_elements({i}, mask(b_.CreateSub(inner_, i))); });
  }

  /// Long code is not written twice where masks cost it nothing: AVX-512 has masked moves of every
  /// element type.
  bool masked_only() const {
    return isa_.vector_bytes == 64 && p_.insts.size() > kLong && !key_.non_temporal;
  }

  // --- reductions

  llvm::Type* accumulators(size_t output, unsigned lanes) const {
    return llvm::FixedVectorType::get(prim_.element(accumulator(output)), lanes);
  }
  Value* identity(size_t output, unsigned lanes) {
    const DType t = accumulator(output);
    const Scalar v = fold_identity(fold(output), t);
    auto* type = accumulators(output, lanes);
    return is_float(t) ? llvm::ConstantFP::get(type, v.f)
                       : static_cast<Value*>(
                             llvm::ConstantInt::get(type, static_cast<uint64_t>(v.i), true));
  }
  Value* widen(size_t output, Value* v) {
    auto* type = accumulators(output, lanes_);
    if (v->getType() == type) return v;
    if (is_float(accumulator(output))) return b_.CreateFPExt(v, type);
    return is_unsigned_int(p_.output_type(output)) ? b_.CreateZExt(v, type)
                                                   : b_.CreateSExt(v, type);
  }
  /// Two accumulators of any number of lanes; NaN wins in maximum and minimum.
  Value* combine(size_t output, Value* a, Value* b) {
    const DType t = accumulator(output);
    switch (fold(output)) {
      case Fold::sum:
        return is_float(t) ? b_.CreateFAdd(a, b) : b_.CreateAdd(a, b);
      case Fold::prod:
        return is_float(t) ? b_.CreateFMul(a, b) : b_.CreateMul(a, b);
      default:
        break;
    }
    Value* farther = b_.CreateSelect(beyond(output, b, a), b, a);  // one instruction; keeps a's NaN
    return is_float(t) ? b_.CreateSelect(b_.CreateFCmpUNO(b, b), b, farther) : farther;
  }
  /// Whether b is greater than a in a maximum, less in a minimum.
  Value* beyond(size_t output, Value* b, Value* a) {
    const DType t = accumulator(output);
    const bool max = fold(output) == Fold::max;
    if (is_float(t)) return max ? b_.CreateFCmpOGT(b, a) : b_.CreateFCmpOLT(b, a);
    if (is_unsigned_int(t)) return max ? b_.CreateICmpUGT(b, a) : b_.CreateICmpULT(b, a);
    return max ? b_.CreateICmpSGT(b, a) : b_.CreateICmpSLT(b, a);
  }
  std::vector<size_t> folded() const {
    std::vector<size_t> out;
    for (size_t k = 0; k < p_.outputs.size(); ++k)
      if (fold(k) != Fold::none) out.push_back(k);
    return out;
  }

  /// Elements at `starts` into accumulators, [output][start]; lanes that the mask leaves out change
  /// nothing.
  std::vector<Value*> fold_elements(const std::vector<Value*>& starts, Value* mask,
                                    const std::vector<Value*>& into) {
    const auto values = emit_elements(starts, mask);
    std::vector<Value*> out;
    for (size_t k : folded())
      for (size_t u = 0; u < starts.size(); ++u) {
        Value* v = widen(k, values[u][p_.outputs[k]]);
        if (mask) v = b_.CreateSelect(mask, v, identity(k, lanes_));
        out.push_back(combine(k, into[out.size()], v));
      }
    return out;
  }

  std::vector<Value*> starts_at(Value* i) {
    std::vector<Value*> starts;
    for (unsigned u = 0; u < unroll_; ++u)
      starts.push_back(b_.CreateAdd(i, b_.getInt64(u * lanes_)));
    return starts;
  }

  /// Along the row: several accumulators a fold, the first of which goes on from memory; at the end
  /// one.
  void fold_row() {
    Value* main_end = whole_steps();
    std::vector<Value*> first;
    for (size_t k : folded()) {
      first.insert(first.end(), unroll_, identity(k, lanes_));
      Value* before =
          b_.CreateAlignedLoad(prim_.element(accumulator(k)), total_place(k), llvm::Align(1));
      first[first.size() - unroll_] =
          b_.CreateInsertElement(identity(k, lanes_), before, uint64_t{0});
    }
    auto many = carry(b_.getInt64(0), main_end, step(), "main", first,
                      [&](Value* i, const std::vector<Value*>& into) {
                        return fold_elements(starts_at(i), nullptr, into);
                      });
    std::vector<Value*> one;
    for (size_t f = 0; f < folded().size(); ++f) {
      one.push_back(many[f * unroll_]);
      for (unsigned u = 1; u < unroll_; ++u)
        one[f] = combine(folded()[f], one[f], many[f * unroll_ + u]);
    }
    one = carry(main_end, inner_, static_cast<int64_t>(lanes_), "rest", one,
                [&](Value* i, const std::vector<Value*>& into) {
                  return fold_elements({i}, mask(b_.CreateSub(inner_, i)), into);
                });
    for (size_t f = 0; f < folded().size(); ++f) store_total(folded()[f], one[f]);
  }

  Value* total_place(size_t k) { return rows_[p_.inputs.size() + k]; }

  /// All lanes in the first one. Maximum and minimum look for NaN once, not at each halving.
  void store_total(size_t k, Value* v) {
    const DType t = accumulator(k);
    const bool extremum = is_float(t) && (fold(k) == Fold::max || fold(k) == Fold::min);
    Value* nan = extremum ? b_.CreateOrReduce(b_.CreateFCmpUNO(v, v)) : nullptr;
    for (unsigned half = lanes_ / 2; half; half /= 2) {
      // Of no less than 16 bytes: shorter vectors would be taken apart.
      const unsigned least = 128u / static_cast<unsigned>(size_bits(t));
      std::vector<int> low, high;
      for (unsigned l = 0; l < std::max(half, least); ++l)
        low.push_back(static_cast<int>(l % half)),
            high.push_back(static_cast<int>(l % half + half));
      Value *a = b_.CreateShuffleVector(v, low), *b = b_.CreateShuffleVector(v, high);
      v = extremum ? b_.CreateSelect(beyond(k, b, a), b, a) : combine(k, a, b);
    }
    Value* total = b_.CreateExtractElement(v, uint64_t{0});
    if (nan) total = b_.CreateSelect(nan, llvm::ConstantFP::getNaN(total->getType()), total);
    b_.CreateAlignedStore(total, total_place(k), llvm::Align(1));
  }

  /// Across rows: the accumulators of some columns stay in registers while all rows pass.
  void emit_columns(Value* outer) {
    Value* main_end = whole_steps();
    loop(b_.getInt64(0), main_end, step(), "columns",
         [&](Value* i) { fold_columns(outer, starts_at(i), nullptr); });
    loop(main_end, inner_, static_cast<int64_t>(lanes_), "rest",
         [&](Value* i) { fold_columns(outer, {i}, mask(b_.CreateSub(inner_, i))); });
  }

  void fold_columns(Value* outer, const std::vector<Value*>& starts, Value* mask) {
    std::vector<Value*> first, places;
    for (size_t k : folded())
      for (Value* start : starts) {
        auto bytes = static_cast<uint64_t>(size_bits(accumulator(k)) / 8);
        places.push_back(b_.CreateGEP(b_.getInt8Ty(), bases_[p_.inputs.size() + k],
                                      b_.CreateMul(start, b_.getInt64(bytes))));
        auto* type = accumulators(k, lanes_);
        first.push_back(
            mask ? b_.CreateMaskedLoad(type, places.back(), llvm::Align(1), mask,
                                       identity(k, lanes_))
                 : static_cast<Value*>(b_.CreateAlignedLoad(type, places.back(), llvm::Align(1))));
      }
    auto last = carry(b_.getInt64(0), outer, 1, "fold", first,
                      [&](Value* row, const std::vector<Value*>& into) {
                        start_row(row);
                        return fold_elements(starts, mask, into);
                      });
    for (size_t k = 0; k < last.size(); ++k) {
      if (mask)
        b_.CreateMaskedStore(last[k], places[k], llvm::Align(1), mask);
      else
        b_.CreateAlignedStore(last[k], places[k], llvm::Align(1));
    }
  }

  Value* rows_aligned() {
    Value* bits = b_.getInt64(0);
    for (size_t k = p_.inputs.size(); k < operands(); ++k)
      bits = b_.CreateOr(bits, b_.CreatePtrToInt(rows_[k], i64_));
    return b_.CreateICmpEQ(b_.CreateAnd(bits, b_.getInt64(kNonTemporalAlign - 1)), b_.getInt64(0));
  }

  /// Lanes below `left`, compared in integers as wide as the widest element.
  Value* mask(Value* left) {
    auto* lane = b_.getIntNTy(static_cast<unsigned>(isa_.vector_bytes) * 8 / lanes_);
    std::vector<llvm::Constant*> lanes;
    for (unsigned k = 0; k < lanes_; ++k) lanes.push_back(llvm::ConstantInt::get(lane, k));
    Value* capped = b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, left, b_.getInt64(lanes_));
    return b_.CreateICmpUGT(prim_.splat(b_.CreateTrunc(capped, lane)),
                            llvm::ConstantVector::get(lanes));
  }

  Value* from_storage(DType t, Value* v) {
    if (t != DType::boolean) return v;
    return b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
  }

  /// Values that are the same along the row, computed once a row: broadcast inputs, constants, and
  /// all that depends on nothing else.
  void emit_uniform() {
    uniform_.assign(p_.insts.size(), nullptr);
    for (size_t k = 0; k < p_.insts.size(); ++k) {
      const Inst& in = p_.insts[k];
      if (in.op == Prim::constant) {
        uniform_[k] = prim_.constant(in);
      } else if (in.op == Prim::load) {
        if (key_.inner[in.index] != InnerStride::broadcast) continue;
        Value* v = b_.CreateAlignedLoad(prim_.storage(in.type), rows_[in.index], llvm::Align(1));
        uniform_[k] = from_storage(in.type, prim_.splat(v));
      } else if (all_uniform(in)) {
        uniform_[k] = compute(in, uniform_);
      }
    }
  }
  bool all_uniform(const Inst& in) const {
    for (int a = 0; a < info(in.op).arity; ++a)
      if (!uniform_[in.args[a]]) return false;
    return true;
  }

  Value* compute(const Inst& in, const std::vector<Value*>& values) {
    std::array<Value*, 3> args{};
    std::array<DType, 3> types{};
    auto n = static_cast<size_t>(info(in.op).arity);
    for (size_t a = 0; a < n; ++a) {
      args[a] = values[in.args[a]];
      types[a] = p_.insts[in.args[a]].type;
    }
    return prim_.emit(in, std::span(types).first(n), std::span(args).first(n));
  }

  /// The program at each of the starting elements, instruction by instruction, so that they
  /// overlap. Gives the values, [start][instruction]; stores outputs that are not folded.
  std::vector<std::vector<Value*>> emit_elements(const std::vector<Value*>& starts, Value* mask) {
    std::vector<std::vector<Value*>> values(starts.size(), uniform_);
    for (size_t k = 0; k < p_.insts.size(); ++k) {
      if (uniform_[k]) continue;
      const Inst& in = p_.insts[k];
      for (size_t u = 0; u < starts.size(); ++u)
        values[u][k] = in.op == Prim::load ? load(in, starts[u], mask) : compute(in, values[u]);
    }
    for (size_t u = 0; u < starts.size(); ++u)
      for (size_t k = 0; k < p_.outputs.size(); ++k)
        if (fold(k) == Fold::none) store(k, values[u][p_.outputs[k]], starts[u], mask);
    return values;
  }

  /// Address of element `start`, or one address a lane for strided operands.
  Value* address(size_t k, Value* start) {
    if (key_.inner[k] != InnerStride::strided) {
      const int64_t step = element_bytes(k) * (key_.inner[k] == InnerStride::second ? 2 : 1);
      return b_.CreateGEP(b_.getInt8Ty(), rows_[k],
                          b_.CreateMul(start, b_.getInt64(static_cast<uint64_t>(step))));
    }
    std::vector<llvm::Constant*> lanes;
    for (unsigned lane = 0; lane < lanes_; ++lane) lanes.push_back(b_.getInt64(lane));
    Value* index = b_.CreateAdd(prim_.splat(start), llvm::ConstantVector::get(lanes));
    return b_.CreateGEP(b_.getInt8Ty(), rows_[k], b_.CreateMul(index, prim_.splat(steps_[k])));
  }

  /// Of the vectors at `p` and behind it, the elements that are every second one's: which lanes of
  /// vector `half` they are.
  Value* second_lanes(unsigned half, Value* mask) {
    std::vector<llvm::Constant*> even;
    for (unsigned k = 0; k < lanes_; ++k) even.push_back(b_.getInt1((half * lanes_ + k) % 2 == 0));
    Value* lanes = llvm::ConstantVector::get(even);
    return mask ? b_.CreateAnd(lanes, b_.CreateShuffleVector(mask, spread(half))) : lanes;
  }
  /// Which element is stored to, or its neighbour, in each lane of vector `half`.
  std::vector<int> spread(unsigned half) const {
    std::vector<int> from;
    for (unsigned k = 0; k < lanes_; ++k) from.push_back(static_cast<int>((half * lanes_ + k) / 2));
    return from;
  }
  Value* behind(Value* p, unsigned elements, int64_t bytes) {
    return b_.CreateGEP(b_.getInt8Ty(), p, b_.getInt64(elements * static_cast<uint64_t>(bytes)));
  }
  /// Nothing behind the last element is read: it may lie outside of the tensor.
  Value* load_second(llvm::FixedVectorType* type, Value* p, Value* mask, int64_t bytes) {
    const unsigned far = mask ? lanes_ : lanes_ - 1;  // where the second vector begins
    std::array<Value*, 2> parts{};
    for (unsigned half : {0u, 1u}) {
      Value* at = half ? behind(p, far, bytes) : p;
      parts[half] = mask ? b_.CreateMaskedLoad(type, at, llvm::Align(1), second_lanes(half, mask),
                                               llvm::Constant::getNullValue(type))
                         : static_cast<Value*>(b_.CreateAlignedLoad(type, at, llvm::Align(1)));
    }
    std::vector<int> from;
    for (unsigned at = 0; at < 2 * lanes_; at += 2)
      from.push_back(static_cast<int>(at < lanes_ ? at : lanes_ + at - far));
    return b_.CreateShuffleVector(parts[0], parts[1], from);
  }
  void store_second(Value* v, Value* p, Value* mask, int64_t bytes) {
    for (unsigned half : {0u, 1u})
      b_.CreateMaskedStore(b_.CreateShuffleVector(v, spread(half)),
                           half ? behind(p, lanes_, bytes) : p, llvm::Align(1),
                           second_lanes(half, mask));
  }

  Value* load(const Inst& in, Value* start, Value* mask) {
    auto* type = llvm::FixedVectorType::get(prim_.storage(in.type), lanes_);
    Value* p = address(in.index, start);
    Value* v = nullptr;
    if (key_.inner[in.index] == InnerStride::strided) {
      v = b_.CreateMaskedGather(type, p, llvm::Align(1), mask ? mask : all(),
                                llvm::Constant::getNullValue(type));
    } else if (key_.inner[in.index] == InnerStride::second) {
      v = load_second(type, p, mask, element_bytes(in.index));
    } else if (mask) {
      v = b_.CreateMaskedLoad(type, p, llvm::Align(1), mask, llvm::Constant::getNullValue(type));
    } else {
      v = b_.CreateAlignedLoad(type, p, llvm::Align(1));
    }
    return from_storage(in.type, v);
  }

  void store(size_t output, Value* v, Value* start, Value* mask) {
    size_t k = p_.inputs.size() + output;
    DType t = operand_type(k);
    if (t == DType::boolean)
      v = b_.CreateZExt(v, llvm::FixedVectorType::get(prim_.storage(t), lanes_));
    Value* p = address(k, start);
    if (key_.inner[k] == InnerStride::strided) {
      b_.CreateMaskedScatter(v, p, llvm::Align(1), mask ? mask : all());
    } else if (key_.inner[k] == InnerStride::second) {
      store_second(v, p, mask, element_bytes(k));
    } else if (mask) {
      b_.CreateMaskedStore(v, p, llvm::Align(1), mask);
    } else {
      auto whole = lanes_ * static_cast<uint64_t>(element_bytes(k));
      bool past_cache = key_.non_temporal && whole >= 16;
      auto* s = b_.CreateAlignedStore(v, p, llvm::Align(past_cache ? whole : 1));
      if (past_cache) {
        auto* one = llvm::ConstantAsMetadata::get(b_.getInt32(1));
        s->setMetadata(llvm::LLVMContext::MD_nontemporal,
                       llvm::MDNode::get(module_.getContext(), one));
      }
    }
  }
  Value* all() {
    return llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes_));
  }

  const KernelKey& key_;
  const Program& p_;
  const CpuIsa& isa_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  unsigned lanes_, unroll_;
  PrimitiveEmitter prim_;
  llvm::Function* fn_ = nullptr;
  llvm::Type* i64_ = nullptr;
  Value* inner_ = nullptr;
  std::vector<Value*> bases_, row_strides_, steps_, rows_, uniform_;
};

/// A machine for the target, kept by each thread: making one costs as much as a small kernel.
Result<llvm::TargetMachine*> machine_for(const CpuIsa& isa) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
  thread_local std::map<std::string, std::unique_ptr<llvm::TargetMachine>, std::less<>> machines;
  auto& machine = machines[std::string(isa.target)];
  if (machine) return machine.get();
  const char* triple = "x86_64-unknown-linux-gnu";
  std::string why;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, why);
  if (!target) return error(Code::codegen_failed, "", why);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  machine.reset(target->createTargetMachine(triple, llvm::StringRef(isa.cpu.data(), isa.cpu.size()),
                                            "", options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                            llvm::CodeGenOptLevel::Default, true));
  if (!machine) return error(Code::codegen_failed, "", "LLVM has no machine for the target");
  return machine.get();
}

Status check(const KernelKey& key) {
  FERRULE_TRY(verify(key.program));
  FERRULE_ASSERT(key.inner.size() == key.program.inputs.size() + key.program.outputs.size(),
                 "strides of a kernel");
  for (const Inst& in : key.program.insts)
    if (!can_hold(in.type)) return error(Code::unsupported_type, "generated kernel", name(in.type));
  for (DType t : key.program.inputs)
    if (!can_hold(t)) return error(Code::unsupported_type, "generated kernel", name(t));
  return {};
}

}  // namespace

Result<std::string> compile_cpu(const KernelKey& key, std::string_view symbol, CodeForm form) {
  FERRULE_ASSIGN(CpuIsa isa, cpu_isa(key.target));
  FERRULE_TRY(check(key));
  FERRULE_ASSIGN(llvm::TargetMachine * machine, machine_for(isa));
  Program program = key.program;
  expand_transcendentals(program, /*keep_exp=*/true);
  llvm::LLVMContext context;
  llvm::Module module("ferrule", context);
  module.setTargetTriple(machine->getTargetTriple().str());
  module.setDataLayout(machine->createDataLayout());
  KernelEmitter(key, program, isa, module).emit(symbol);
  std::string text;
  llvm::raw_string_ostream problems(text);
  if (llvm::verifyModule(module, &problems))
    return error(Code::codegen_failed, std::string(symbol), text);
  if (form == CodeForm::ir) {
    module.print(problems, nullptr);
    return text;
  }
  llvm::SmallVector<char, 0> code;
  llvm::raw_svector_ostream out(code);
  llvm::legacy::PassManager passes;
  auto type = form == CodeForm::object ? llvm::CodeGenFileType::ObjectFile
                                       : llvm::CodeGenFileType::AssemblyFile;
  if (machine->addPassesToEmitFile(passes, out, nullptr, type, true))
    return error(Code::codegen_failed, std::string(symbol), "LLVM cannot write this form");
  passes.run(module);
  return std::string(code.begin(), code.end());
}

std::string to_identifier(std::string_view name) {
  std::string out;
  for (char c : name.substr(0, 100)) {
    bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    out += word ? c : '_';
  }
  return out.empty() || (out[0] >= '0' && out[0] <= '9') ? "_" + out : out;
}

}  // namespace ferrule
