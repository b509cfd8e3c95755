#include "runtime/c/internal.h"

#include "runtime/shipped_rules.h"

namespace ferrule::c {

ferrule_status* of(Error e) {
  std::string text = render(e);
  return new ferrule_status{std::move(e), std::move(text)};
}

ferrule_status* thrown(const char* place) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return of(make_error_v(Code::out_of_memory, place,
                           fmt::make_format_args("the call", "more", "no more")));
  } catch (const std::exception& e) {
    Error bug = make_error_v(Code::codegen_failed, place, fmt::make_format_args("an exception"));
    bug.message = std::string("an exception that nothing expected: ") + e.what();
    return of(std::move(bug));
  }
}

tl::unexpected<Error> misuse(std::string place, const std::string& text) {
  return error(Code::usage, std::move(place), text);
}

Status given(std::initializer_list<std::pair<const char*, const void*>> pointers, size_t count) {
  if (count)
    for (const auto& [name, p] : pointers)
      if (!p) return misuse(name, "it is NULL");
  return {};
}

Status known(const void* s, size_t size, size_t ours, const char* name) {
  constexpr size_t kLargest = 4096;
  if (size < sizeof size)
    return misuse(name, fmt::format("size is not set: begin with ferrule_{}_init()", name));
  if (size > kLargest) return misuse(name, fmt::format("size is {}: nothing is so large", size));
  const char* bytes = static_cast<const char*>(s);
  for (size_t k = ours; k < size; ++k)
    if (bytes[k])
      return misuse(name, "it has a member that this version of libferrule does not know");
  return {};
}

namespace {

std::vector<std::string> list(const char* const* strings) {
  std::vector<std::string> out;
  for (; strings && *strings; ++strings) out.emplace_back(*strings);
  return out;
}
}  // namespace

std::string text(const char* s) { return s ? s : ""; }

Result<SessionOptions> options_of(const ferrule_session_options* o) {
  using O = ferrule_session_options;
  if (o) FERRULE_TRY(known(*o, "session_options"));
  SessionOptions s;
  const std::string rules = text(member(o, &O::rules));
  s.engine.rule_dirs = {rules.empty() ? shipped_rules() : rules};
  for (std::string& dir : list(member(o, &O::rule_folders))) s.engine.rule_dirs.push_back(dir);
  s.engine.selection.enable = list(member(o, &O::enable));
  s.engine.selection.disable = list(member(o, &O::disable));
  if (member(o, &O::no_fusion)) s.engine.selection.disable.emplace_back("*");
  s.engine.overrides = list(member(o, &O::override_files));
  s.engine.allow_unproven = list(member(o, &O::allow_unproven));
  s.engine.target = text(member(o, &O::target));
  s.engine.rule_tests = false;
  if (const char* cache = member(o, &O::cache)) s.engine.cache = cache;
  if (const char* backend = member(o, &O::backend)) s.backend = backend;
  s.tuning = text(member(o, &O::tuning));
  s.threads = member(o, &O::threads);
  s.concurrent_runs = member(o, &O::concurrent_runs);
  for (const auto& [number, what] :
       {std::pair{s.threads, "threads"}, {s.concurrent_runs, "concurrent_runs"}})
    if (number < 0 || number > 1024)
      return error(Code::usage, "options", fmt::format("{} is {}, not in 0 to 1024", what, number));
  s.engine.overridable = member(o, &O::overridable) != 0;
  s.require_device = member(o, &O::require_device) != 0;
  s.strict = member(o, &O::strict) != 0;
  s.fast_math = member(o, &O::fast_math) != 0;
  if (const auto log = member(o, &O::log))
    s.log = [log, context = member(o, &O::log_context), most = member(o, &O::log_level)](
                LogLevel level, std::string_view line) {
      if (static_cast<int32_t>(level) <= most)
        log(context, static_cast<int32_t>(level), std::string(line).c_str());
    };
  return s;
}

Result<std::vector<int64_t>> dims_of(const ferrule_tensor& t) {
  const auto most = Limits().rank;
  if (t.rank < 0 || t.rank > most)
    return misuse(escape(text(t.name)),
                  fmt::format("its rank is {}, not in 0 to {}", t.rank, most));
  if (t.rank > 0 && !t.dims) return misuse(escape(text(t.name)), "it has no dims");
  std::vector<int64_t> dims(t.dims, t.dims + t.rank);
  for (int64_t d : dims)
    if (d < 0) return error(Code::usage, escape(text(t.name)), fmt::format("a dim is {}", d));
  FERRULE_TRY(check_bytes(static_cast<DType>(t.type), dims, escape(text(t.name)), 0));
  return dims;
}

Result<Shapes> shapes_of(const ferrule_tensor* shapes, size_t count) {
  FERRULE_TRY(given({{"shapes", shapes}}, count));
  Shapes out;
  for (size_t k = 0; k < count; ++k) {
    FERRULE_ASSIGN(out[text(shapes[k].name)], dims_of(shapes[k]));
  }
  return out;
}

char* handed_out(const std::string& text) {
  char* out = new char[text.size() + 1];
  std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

}  // namespace ferrule::c
