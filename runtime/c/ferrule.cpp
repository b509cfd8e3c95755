// The C interface over Session. No exception leaves it; nothing else is exported by libferrule.
#include "runtime/c/ferrule.h"

#include <cstring>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "runtime/session.h"
#include "runtime/shipped_rules.h"

using namespace ferrule;
using json = nlohmann::json;

struct ferrule_status {
  Error error;
  std::string text;
};

struct ferrule_session {
  struct Described {  ///< a Port as C sees it
    const Port* port;
    std::vector<int64_t> dims;
    std::vector<std::string> names;
    std::vector<const char*> symbols;
  };
  std::optional<Session> session;
  std::shared_ptr<Cancel> cancel = std::make_shared<Cancel>();
  std::vector<Described> inputs, outputs;
};

struct ferrule_results {
  struct Named {
    std::string name;
    Tensor tensor;
    std::vector<const char*> strings;
  };
  std::vector<Named> tensors;
};

namespace {

ferrule_status* of(Error e) {
  std::string text = render(e);
  return new ferrule_status{std::move(e), std::move(text)};
}

/// What `body` returns as an error, or what the standard library throws when there is no memory.
template <class Body>
ferrule_status* guarded(const char* place, Body&& body) {
  try {
    Status s = body();
    return s ? nullptr : of(std::move(s).error());
  } catch (const std::exception& e) {
    return of(make_error_v(Code::out_of_memory, place,
                           fmt::make_format_args("the call", "more", "no more")));
  }
}

Status misuse(std::string place, std::string text) { return error(Code::usage, place, text); }

/// A member that the caller's version of a struct has, else 0.
template <class S, class T>
T member(const S* s, T S::* which) {
  if (!s) return T{};
  const auto* from = reinterpret_cast<const char*>(&(s->*which));
  const auto end = static_cast<size_t>(from - reinterpret_cast<const char*>(s)) + sizeof(T);
  return end <= s->size ? s->*which : T{};
}

std::vector<std::string> list(const char* const* strings) {
  std::vector<std::string> out;
  for (; strings && *strings; ++strings) out.emplace_back(*strings);
  return out;
}
std::string text(const char* s) { return s ? s : ""; }

Result<SessionOptions> options_of(const ferrule_session_options* o) {
  using O = ferrule_session_options;
  if (o && o->size < sizeof o->size)
    return error(Code::usage, "options",
                 "size is not set: begin with ferrule_session_options_init()");
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
  if (const char* cache = member(o, &O::cache)) s.engine.cache = cache;
  if (const char* backend = member(o, &O::backend)) s.backend = backend;
  s.tuning = text(member(o, &O::tuning));
  s.threads = member(o, &O::threads);
  s.concurrent_runs = member(o, &O::concurrent_runs);
  for (const auto& [number, what] :
       {std::pair{s.threads, "threads"}, {s.concurrent_runs, "concurrent_runs"}})
    if (number < 0 || number > 1024)
      return error(Code::usage, "options", fmt::format("{} is {}, not in 0 to 1024", what, number));
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

std::vector<ferrule_session::Described> described(const std::vector<Port>& ports) {
  std::vector<ferrule_session::Described> out;
  for (const Port& p : ports) {
    ferrule_session::Described d{&p, {}, {}, {}};
    for (const Dim& dim : p.type.shape.value_or(Shape{})) {
      d.dims.push_back(dim.value_or(-1));
      const std::string name = dim.is_constant() ? "" : dim.str();
      d.names.push_back(name.starts_with("?") ? "" : name);
    }
    out.push_back(std::move(d));
  }
  for (auto& d : out)  // where they lie from now on
    for (const std::string& n : d.names) d.symbols.push_back(n.c_str());
  return out;
}

template <class Load>
ferrule_status* create(const ferrule_session_options* options, ferrule_session** session,
                       Load&& load) {
  *session = nullptr;
  return guarded("session", [&]() -> Status {
    FERRULE_ASSIGN(SessionOptions o, options_of(options));
    auto s = std::make_unique<ferrule_session>();
    o.cancel = s->cancel;
    FERRULE_ASSIGN(Session loaded, load(std::move(o)));
    s->session.emplace(std::move(loaded));
    s->inputs = described(s->session->inputs());
    s->outputs = described(s->session->outputs());
    *session = s.release();
    return {};
  });
}

ferrule_status* port_of(const std::vector<ferrule_session::Described>& all, size_t index,
                        ferrule_port* port) {
  return guarded("port", [&]() -> Status {
    if (index >= all.size()) return misuse("index", fmt::format("there are {}", all.size()));
    const auto& d = all[index];
    const ferrule_port full{sizeof(ferrule_port),
                            d.port->name.c_str(),
                            d.dims.data(),
                            d.symbols.data(),
                            d.port->type.shape ? static_cast<int32_t>(d.dims.size()) : -1,
                            static_cast<int32_t>(d.port->type.dtype),
                            d.port->optional};
    const size_t size = port->size;
    if (size < sizeof size)
      return misuse("port", "size is not set: begin with ferrule_port_init()");
    std::memcpy(port, &full, std::min(size, sizeof full));
    port->size = size;
    return {};
  });
}

Result<std::vector<int64_t>> dims_of(const ferrule_tensor& t) {
  if (t.rank < 0 || (t.rank > 0 && !t.dims))
    return error(Code::usage, escape(text(t.name)), "it has no dims");
  std::vector<int64_t> dims(t.dims, t.dims + t.rank);
  for (int64_t d : dims)
    if (d < 0) return error(Code::usage, escape(text(t.name)), fmt::format("a dim is {}", d));
  FERRULE_TRY(check_bytes(static_cast<DType>(t.type), dims, escape(text(t.name)), 0));
  return dims;
}

/// Over the caller's memory.
Result<Tensor> borrowed(const ferrule_tensor& t) {
  const std::string place = "input " + escape(text(t.name));
  const auto type = static_cast<DType>(t.type);
  FERRULE_ASSIGN(std::vector<int64_t> dims, dims_of(t));
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  if (type == DType::string) {
    std::vector<std::string> strings;
    for (int64_t k = 0; k < count; ++k) {
      const char* s = t.data ? static_cast<const char* const*>(t.data)[k] : nullptr;
      if (!s) return error(Code::usage, place, fmt::format("element {} is NULL", k));
      strings.emplace_back(s);
    }
    return Tensor(std::move(dims), std::move(strings));
  }
  if (t.type < 0 || t.type > FERRULE_FLOAT4E2M1 || size_bits(type) == 0)
    return error(Code::usage, place, fmt::format("{} is no element type", t.type));
  const auto bytes = static_cast<size_t>(size_bytes(type, count));
  if (t.bytes != bytes)
    return error(Code::usage, place,
                 fmt::format("its dims stand for {} bytes, it has {}", bytes, t.bytes));
  if (!t.data && bytes) return error(Code::usage, place, "its data is NULL");
  return Tensor(type, std::move(dims), nullptr, t.data);
}

Result<std::map<std::string, Tensor>> inputs_of(const ferrule_tensor* inputs, size_t count) {
  std::map<std::string, Tensor> out;
  for (size_t k = 0; k < count; ++k) {
    FERRULE_ASSIGN(Tensor t, borrowed(inputs[k]));
    if (!out.emplace(text(inputs[k].name), std::move(t)).second)
      return error(Code::usage, "inputs",
                   fmt::format("{} is there twice", escape(text(inputs[k].name))));
  }
  return out;
}

bool within(const void* p, const ferrule_tensor& t) {
  const auto *b = static_cast<const char*>(t.data), *x = static_cast<const char*>(p);
  return t.bytes && !std::less<>()(x, b) && std::less<>()(x, b + t.bytes);
}

/// A result in memory of its own: the caller's, which inputs lie in, is his.
Tensor owned(Tensor t, const ferrule_tensor* inputs, size_t count) {
  if (t.dtype() == DType::string) return t;
  for (size_t k = 0; k < count; ++k)
    if (within(t.address(), inputs[k])) {
      auto [copy, bytes] = Tensor::allocate(t.dtype(), t.dims());
      std::memcpy(bytes, t.data(), static_cast<size_t>(t.bytes()));
      return copy;
    }
  return t;
}

Status unknown_output(const ferrule_session& s, const std::string& name) {
  std::string all;
  for (const Port& p : s.session->outputs()) all += (all.empty() ? "" : ", ") + escape(p.name);
  return misuse("outputs", fmt::format("the model has no output {}; it has {}", escape(name), all));
}

Result<std::map<std::string, Tensor>> run(ferrule_session* s, const ferrule_tensor* inputs,
                                          size_t count) {
  FERRULE_ASSIGN(auto in, inputs_of(inputs, count));
  FERRULE_ASSIGN(auto out, s->session->run(in));
  for (auto& [name, t] : out) t = owned(std::move(t), inputs, count);
  return out;
}

json plan_of(const Compiled& c) {
  json layers = json::array();
  for (const Layer& l : c.plan().layers)
    layers.push_back({{"name", l.name},
                      {"contract", l.contract},
                      {"rule", l.rule},
                      {"nodes", l.nodes},
                      {"kernels", l.kernels},
                      {"numerics", l.numerics}});
  return {{"target", c.plan().target}, {"layers", layers}, {"notes", c.notes()}};
}

json journal_of(const Compiled& c) {
  json steps = json::array();
  for (const Step& s : c.journal().steps)
    steps.push_back({{"phase", s.phase},
                     {"rule", s.rule},
                     {"kind", s.kind},
                     {"before", s.before},
                     {"after", s.after},
                     {"text", s.text}});
  return {{"steps", steps}, {"phases", c.journal().phases}};
}

json model_of(const ModelInfo& m) {
  return {{"producer", m.producer},       {"graph", m.graph},     {"domain", m.domain},
          {"description", m.description}, {"version", m.version}, {"ir_version", m.ir_version},
          {"metadata", m.metadata}};
}

}  // namespace

const char* ferrule_version(void) { return FERRULE_VERSION; }

const char* ferrule_status_code(const ferrule_status* s) { return code_name(s->error.code).data(); }
int32_t ferrule_status_exit_code(const ferrule_status* s) {
  return static_cast<int32_t>(exit_code(s->error.code));
}
const char* ferrule_status_place(const ferrule_status* s) { return s->error.place.c_str(); }
const char* ferrule_status_message(const ferrule_status* s) { return s->error.message.c_str(); }
const char* ferrule_status_hint(const ferrule_status* s) { return s->error.hint.c_str(); }
const char* ferrule_status_text(const ferrule_status* s) { return s->text.c_str(); }
void ferrule_status_free(ferrule_status* s) { delete s; }

ferrule_status* ferrule_session_create(const char* path, const ferrule_session_options* options,
                                       ferrule_session** session) {
  return create(options, session,
                [&](SessionOptions o) { return Session::load(path, std::move(o)); });
}
ferrule_status* ferrule_session_create_from_bytes(const void* model, size_t bytes,
                                                  const ferrule_session_options* options,
                                                  ferrule_session** session) {
  return create(options, session, [&](SessionOptions o) {
    return Session::load_bytes({static_cast<const char*>(model), bytes}, std::move(o));
  });
}
void ferrule_session_free(ferrule_session* s) { delete s; }

size_t ferrule_session_input_count(const ferrule_session* s) { return s->inputs.size(); }
size_t ferrule_session_output_count(const ferrule_session* s) { return s->outputs.size(); }
ferrule_status* ferrule_session_input(const ferrule_session* s, size_t index, ferrule_port* port) {
  return port_of(s->inputs, index, port);
}
ferrule_status* ferrule_session_output(const ferrule_session* s, size_t index, ferrule_port* port) {
  return port_of(s->outputs, index, port);
}

ferrule_status* ferrule_session_view(ferrule_session* s, int32_t view, const ferrule_tensor* shapes,
                                     size_t count, char** text_out) {
  *text_out = nullptr;
  return guarded("view", [&]() -> Status {
    json j;
    if (view == FERRULE_VIEW_MODEL) {
      j = model_of(s->session->info());
    } else if (view == FERRULE_VIEW_PLAN || view == FERRULE_VIEW_JOURNAL ||
               view == FERRULE_VIEW_DEVICE) {
      Shapes given;
      for (size_t k = 0; k < count; ++k) {
        FERRULE_ASSIGN(given[text(shapes[k].name)], dims_of(shapes[k]));
      }
      FERRULE_ASSIGN(const auto c, s->session->plan(given));
      j = view == FERRULE_VIEW_PLAN      ? plan_of(*c)
          : view == FERRULE_VIEW_JOURNAL ? journal_of(*c)
                                         : json{{"backend", c->backend()},
                                                {"device", c->device()},
                                                {"target", c->plan().target}};
    } else {
      return misuse("view", fmt::format("{} is none of ferrule_view", view));
    }
    j["schema_version"] = 1;
    const std::string out = j.dump(-1, ' ', false, json::error_handler_t::replace);
    *text_out = new char[out.size() + 1];
    std::memcpy(*text_out, out.c_str(), out.size() + 1);
    return {};
  });
}
void ferrule_text_free(char* text) { delete[] text; }

void ferrule_session_cancel(ferrule_session* s) { s->cancel->stop(); }

ferrule_status* ferrule_run(ferrule_session* s, const ferrule_tensor* inputs, size_t input_count,
                            const char* const* wanted, size_t wanted_count,
                            ferrule_results** results) {
  *results = nullptr;
  return guarded("run", [&]() -> Status {
    std::vector<std::string> names;
    for (size_t k = 0; k < wanted_count; ++k) names.push_back(text(wanted[k]));
    if (names.empty())
      for (const Port& p : s->session->outputs()) names.push_back(p.name);
    for (const std::string& name : names)
      if (std::ranges::find(s->session->outputs(), name, &Port::name) ==
          s->session->outputs().end())
        return unknown_output(*s, name);
    FERRULE_ASSIGN(auto out, run(s, inputs, input_count));
    auto r = std::make_unique<ferrule_results>();
    for (std::string& name : names) r->tensors.push_back({name, out.at(name), {}});
    for (auto& t : r->tensors)
      if (t.tensor.dtype() == DType::string)
        for (const std::string& x : t.tensor.strings()) t.strings.push_back(x.c_str());
    *results = r.release();
    return {};
  });
}

ferrule_status* ferrule_run_into(ferrule_session* s, const ferrule_tensor* inputs,
                                 size_t input_count, const ferrule_tensor* outputs,
                                 size_t output_count) {
  return guarded("run", [&]() -> Status {
    const std::vector<Port>& ports = s->session->outputs();
    for (size_t k = 0; k < output_count; ++k)
      if (std::ranges::find(ports, text(outputs[k].name), &Port::name) == ports.end())
        return unknown_output(*s, text(outputs[k].name));
    FERRULE_ASSIGN(const auto in, inputs_of(inputs, input_count));
    FERRULE_ASSIGN(const auto out, s->session->run(in));
    for (size_t k = 0; k < output_count; ++k) {  // all of them are checked before one is written
      const ferrule_tensor& to = outputs[k];
      const Tensor& from = out.at(to.name);
      FERRULE_ASSIGN(const std::vector<int64_t> dims, dims_of(to));
      if (from.dtype() == DType::string)
        return misuse("outputs", "strings have no size that is known before");
      if (static_cast<int32_t>(from.dtype()) != to.type || from.dims() != dims ||
          static_cast<size_t>(from.bytes()) != to.bytes || (!to.data && to.bytes)) {
        Type is{static_cast<DType>(to.type), Shape(dims.begin(), dims.end())},
            wants{from.dtype(), Shape(from.dims().begin(), from.dims().end())};
        return misuse("output " + escape(to.name),
                      fmt::format("the memory is for {} in {} bytes, the model makes {} of {}",
                                  str(is), to.bytes, str(wants), from.bytes()));
      }
    }
    for (size_t k = 0; k < output_count; ++k)
      std::memcpy(outputs[k].data, out.at(outputs[k].name).data(), outputs[k].bytes);
    return {};
  });
}

size_t ferrule_results_count(const ferrule_results* r) { return r->tensors.size(); }
ferrule_status* ferrule_results_get(const ferrule_results* r, size_t index,
                                    ferrule_tensor* tensor) {
  return guarded("results", [&]() -> Status {
    if (index >= r->tensors.size())
      return misuse("index", fmt::format("there are {}", r->tensors.size()));
    const auto& t = r->tensors[index];
    const bool strings = t.tensor.dtype() == DType::string;
    const void* data = strings ? static_cast<const void*>(t.strings.data()) : t.tensor.data();
    *tensor = {t.name.c_str(),         const_cast<void*>(data),
               t.tensor.dims().data(), strings ? 0 : static_cast<size_t>(t.tensor.bytes()),
               t.tensor.rank(),        static_cast<int32_t>(t.tensor.dtype())};
    return {};
  });
}
void ferrule_results_free(ferrule_results* r) { delete r; }
