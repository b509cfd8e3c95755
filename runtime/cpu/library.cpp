#include "runtime/cpu/library.h"

#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "engine/base/file_pages.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

const dnnl::engine& shared_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// Whether the constant is all there in `to`, every bit of it.
bool reversible_order(const Tensor& tensor, const memory::desc& from, const memory::desc& to,
                      float scale) {
  return is_float(tensor.dtype()) && scale == 1 && from.get_data_type() == to.get_data_type() &&
         to.get_format_kind() == memory::format_kind::blocked &&
         static_cast<int64_t>(from.get_size()) == tensor.bytes();
}

/// Writes packed weights in the model's order again.
Residence::Restore unpack(const dnnl::engine& engine, const memory::desc& from,
                          const memory::desc& to, std::shared_ptr<void> buffer) {
  return [=](void* bytes) {
    try {
      memory source(to, engine, buffer.get()), target(from, engine, bytes);
      dnnl::stream stream(engine);
      dnnl::reorder(source, target).execute(stream, source, target);
      stream.wait();
    } catch (const dnnl::error& e) {
      bug(e.what(), __FILE__, __LINE__);  // the same reorder worked the other way round
    }
  };
}

}  // namespace

std::shared_ptr<void> allocate(int64_t bytes) {
  constexpr int64_t kHuge = int64_t{2} << 20, kPage = 4096;
  const int64_t alignment = bytes >= kHuge ? kHuge : 64;
  const int64_t unit = bytes >= kHuge ? kPage : 64;
  const int64_t size = (std::max<int64_t>(bytes, 1) + unit - 1) / unit * unit;
  void* p = nullptr;
  if (posix_memalign(&p, static_cast<size_t>(alignment), static_cast<size_t>(size))) return nullptr;
  // Whole vectors are loaded across the end: what lies there must not be NaN, which would raise
  // NanWatch's flag.
  std::memset(static_cast<char*>(p) + bytes, 0, static_cast<size_t>(size - bytes));
  if (bytes >= kHuge) {
    // The rest behind the last whole huge page would keep memory that nobody uses.
    const int64_t whole = bytes / kHuge * kHuge;
    madvise(p, static_cast<size_t>(whole), MADV_HUGEPAGE);
    if (size > whole)
      madvise(static_cast<char*>(p) + whole, static_cast<size_t>(size - whole), MADV_NOHUGEPAGE);
  }
  return {p, std::free};
}

bool limit_library(const Target& target) {
  if (target.has_isa("avx512f") || !target.has_isa("avx2")) return true;
  static const bool limited = dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2) == dnnl_success;
  return limited;
}

Library::Library(PackCache* cache) : engine(shared_engine()), stream(engine), packs(cache) {}

Packed Library::pack(const Tensor& tensor, const memory::desc& from, const memory::desc& to,
                     float scale) {
  Packed p = packs->pack(engine, stream, tensor, from, to, scale);
  packed_bytes += p.bytes;
  if (p.buffer && reversible_order(tensor, from, to, scale))
    reversible.insert_or_assign(tensor.address(), unpack(engine, from, to, p.buffer));
  return p;
}

Packed Library::derive(const Tensor& tensor, std::string_view recipe, int64_t bytes,
                       const std::function<void(void*)>& fill) {
  Packed p = packs->derive(tensor, recipe, bytes, fill);
  packed_bytes += p.bytes;
  return p;
}

void Library::turns_back(const Tensor& tensor, const Packed& derived,
                         std::function<void(const void*, void*)> back) {
  reversible.insert_or_assign(tensor.address(), [back = std::move(back), buffer = derived.buffer](
                                                    void* to) { back(buffer.get(), to); });
}

template <class Same>
std::optional<Packed> PackCache::find(const Tensor& tensor, Same&& same) {
  auto [begin, end] = entries_.equal_range(tensor.address());
  for (auto it = begin; it != end;) {
    std::shared_ptr<const void> owner = it->second.owner.lock();
    if (!owner) {
      it = entries_.erase(it);
      continue;
    }
    if (same(it->second))
      return Packed{owner, it->second.packed.data, it->second.packed.bytes,
                    it->second.buffer.lock()};
    ++it;
  }
  return std::nullopt;
}

void PackCache::add(const Tensor& tensor, Entry entry) {
  if (entries_.size() >= most_) {
    std::erase_if(entries_, [](const auto& e) { return e.second.owner.expired(); });
    most_ = std::max<size_t>(64, 2 * entries_.size());
  }
  entries_.emplace(tensor.address(), std::move(entry));
}

Packed PackCache::pack(const dnnl::engine& engine, dnnl::stream& stream, const Tensor& tensor,
                       const memory::desc& from, const memory::desc& to, float scale) {
  std::lock_guard lock(mutex_);
  auto same = [&](const Entry& e) {
    return e.recipe.empty() && e.from == from && e.to == to && e.scale == scale;
  };
  if (auto found = find(tensor, same)) return *found;
  Packed packed;
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.address()) % 64 == 0;
  if (from == to && scale == 1 && aligned) {
    packed.owner = std::make_shared<const Tensor>(tensor);
    packed.data = tensor.data();
  } else {
    packed.bytes = static_cast<int64_t>(to.get_size());
    std::shared_ptr<void> buffer = allocate(packed.bytes);
    if (!buffer) throw dnnl::error(dnnl_out_of_memory, "could not allocate packed weights");
    if (packed.bytes >
        size_bytes(tensor.dtype(), tensor.numel()))  // gaps between rows are loaded with them, too
      std::memset(buffer.get(), 0, static_cast<size_t>(packed.bytes));
    memory source(from, engine, const_cast<void*>(tensor.data())), target(to, engine, buffer.get());
    dnnl::primitive_attr attr;
    if (scale != 1) attr.set_scales_mask(DNNL_ARG_SRC, 0);
    dnnl::reorder::primitive_desc desc(engine, from, engine, to, attr);
    std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, source}, {DNNL_ARG_DST, target}};
    if (scale != 1) {
      memory::desc one({1}, memory::data_type::f32, memory::format_tag::a);
      arguments[DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC] = memory(one, engine, &scale);
    }
    dnnl::reorder(desc).execute(stream, arguments);
    stream.wait();
    let_go_file_pages(tensor.address(), static_cast<size_t>(tensor.bytes()));
    packed.owner = std::make_shared<const std::pair<Tensor, std::shared_ptr<void>>>(tensor, buffer);
    packed.data = buffer.get();
    packed.buffer = std::move(buffer);
  }
  add(tensor, {from,
               to,
               scale,
               {},
               packed.owner,
               packed.buffer,
               {nullptr, packed.data, packed.bytes, nullptr}});
  return packed;
}

Packed PackCache::derive(const Tensor& tensor, std::string_view recipe, int64_t bytes,
                         const std::function<void(void*)>& fill) {
  std::lock_guard lock(mutex_);
  if (auto found = find(tensor, [&](const Entry& e) { return e.recipe == recipe; })) return *found;
  std::shared_ptr<void> buffer = allocate(bytes);
  if (!buffer) throw std::bad_alloc();
  fill(buffer.get());
  let_go_file_pages(tensor.address(), static_cast<size_t>(tensor.bytes()));
  Packed packed{std::make_shared<const std::pair<Tensor, std::shared_ptr<void>>>(tensor, buffer),
                buffer.get(), bytes, buffer};
  add(tensor, {{},
               {},
               1,
               std::string(recipe),
               packed.owner,
               buffer,
               {nullptr, packed.data, bytes, nullptr}});
  return packed;
}

std::optional<memory::data_type> data_type(DType t) {
  switch (t) {
    case DType::f32:
      return memory::data_type::f32;
    case DType::f16:
      return memory::data_type::f16;
    case DType::bf16:
      return memory::data_type::bf16;
    case DType::i32:
      return memory::data_type::s32;
    case DType::i8:
      return memory::data_type::s8;
    case DType::u8:
      return memory::data_type::u8;
    default:
      return std::nullopt;
  }
}

memory::desc desc_of(const Operand& o, int rank) {
  std::vector<int64_t> dims = o.dims, strides = o.strides();
  const int64_t outer = o.numel();
  while (static_cast<int>(dims.size()) < rank) {
    dims.insert(dims.begin(), 1);
    strides.insert(strides.begin(), outer);
  }
  return memory::desc(dims, data_type(o.dtype).value_or(memory::data_type::undef), strides);
}

memory::desc desc_of(const Operand& o) { return desc_of(o, o.rank()); }

memory::desc any_desc(const Operand& o) {
  return memory::desc(o.dims, data_type(o.dtype).value_or(memory::data_type::undef),
                      memory::format_tag::any);
}

memory::desc image_desc(const Operand& o) {
  const int rank = o.rank();
  if (rank < 3 || rank > 5 || !o.lies(Layout::channels_last)) return desc_of(o);
  static const memory::format_tag kTags[] = {memory::format_tag::nwc, memory::format_tag::nhwc,
                                             memory::format_tag::ndhwc};
  return memory::desc(o.dims, data_type(o.dtype).value_or(memory::data_type::undef),
                      kTags[rank - 3]);
}

bool channels_last(const Operand& o) { return o.rank() >= 3 && o.lies(Layout::channels_last); }

// --- Prepared
// ---------------------------------------------------------------------------------------

Prepared::Prepared(Context& context, dnnl::primitive primitive, std::string text)
    : library_(context.library), primitive_(std::move(primitive)), text_(std::move(text)) {}

void Prepared::argument(int id, const memory::desc& desc, int slot) {
  memories_.emplace_back(desc, library_.engine, nullptr);
  slots_.emplace_back(slot, memories_.size() - 1);
  arguments_.push_back({id, memories_.back().get()});
}

void Prepared::constant(int id, const memory::desc& desc, Packed packed) {
  memories_.emplace_back(desc, library_.engine, const_cast<void*>(packed.data));
  if (library_.runs_once && packed.bytes == 0) let_go_.emplace_back(packed.data, desc.get_size());
  packed_.push_back(std::move(packed));
  arguments_.push_back({id, memories_.back().get()});
}

void Prepared::operand(int id, const memory::desc& desc, const Operand& o) {
  if (!o.constant) return argument(id, desc, o.slot);
  // Constants lie plain, whatever dims the caller sees them under (a collapsed batch, axes of size
  // 1 in front).
  const memory::desc plain(desc.get_dims(), desc.get_data_type(),
                           strides_of(desc.get_dims(), Layout::plain));
  constant(id, desc, library_.pack(*o.constant, plain, desc));
}

size_t Prepared::in_scratch(const memory::desc& desc) {
  memories_.emplace_back(desc, library_.engine, nullptr);
  scratch_.emplace_back(memories_.size() - 1, scratch_bytes_);
  scratch_bytes_ += (static_cast<int64_t>(desc.get_size()) + 63) / 64 * 64;
  return memories_.size() - 1;
}

void Prepared::repacked(int id, const memory::desc& from, const memory::desc& to, int slot) {
  if (from == to) return argument(id, to, slot);
  const size_t packed = in_scratch(to);
  arguments_.push_back({id, memories_[packed].get()});
  memories_.emplace_back(from, library_.engine, nullptr);
  slots_.emplace_back(slot, memories_.size() - 1);
  repacked_.push_back(
      {dnnl::reorder({library_.engine, from, library_.engine, to}), memories_.size() - 1, packed});
}

void Prepared::scratchpad(const memory::desc& desc) {
  if (desc.get_size() == 0) return;
  arguments_.push_back({DNNL_ARG_SCRATCHPAD, memories_[in_scratch(desc)].get()});
}

void Prepared::bind(Binder& binder) {
  for (auto [slot, index] : slots_) binder.memory(slot, memories_[index].get());
  for (auto [index, at] : scratch_)
    dnnl_memory_set_data_handle(memories_[index].get(), static_cast<char*>(binder.scratch()) + at);
}

Status Prepared::run() {
  count_kernel();
  for (const Repacked& r : repacked_) {
    const std::array<dnnl_exec_arg_t, 2> both{
        {{DNNL_ARG_FROM, memories_[r.from].get()}, {DNNL_ARG_TO, memories_[r.to].get()}}};
    if (auto status =
            dnnl_primitive_execute(r.reorder.get(), library_.stream.get(), 2, both.data());
        status != dnnl_success)
      return failed(status);
  }
  dnnl_status_t status =
      dnnl_primitive_execute(primitive_.get(), library_.stream.get(),
                             static_cast<int>(arguments_.size()), arguments_.data());
  for (const auto& [at, bytes] : let_go_) let_go_file_pages(at, bytes);
  if (status == dnnl_success) [[likely]]
    return {};
  return failed(status);
}

Status Prepared::failed(int status) const {
  return error(Code::library_failed, text_, "oneDNN", fmt::format("status {}", status));
}

}  // namespace ferrule::cpu
