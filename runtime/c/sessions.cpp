// The C interface over Session. No exception leaves it; nothing else is exported by libferrule.
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/c/internal.h"
#include "runtime/session.h"

using namespace ferrule;
using namespace ferrule::c;
using json = nlohmann::json;

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
  if (session) *session = nullptr;
  return guarded("session", [&]() -> Status {
    FERRULE_TRY(given({{"session", session}}));
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

ferrule_status* port_of(const ferrule_session* s,
                        std::vector<ferrule_session::Described> ferrule_session::* which,
                        size_t index, ferrule_port* port) {
  return guarded("port", [&]() -> Status {
    FERRULE_TRY(given({{"session", s}, {"port", port}}));
    const std::vector<ferrule_session::Described>& all = s->*which;
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
  if (t.type < 0 || t.type > FERRULE_INT2 || size_bits(type) == 0)
    return error(Code::usage, place, fmt::format("{} is no element type", t.type));
  const auto bytes = static_cast<size_t>(size_bytes(type, count));
  if (t.bytes != bytes)
    return error(Code::usage, place,
                 fmt::format("its dims stand for {} bytes, it has {}", bytes, t.bytes));
  if (!t.data && bytes) return error(Code::usage, place, "its data is NULL");
  return Tensor(type, std::move(dims), nullptr, t.data);
}

/// Where the model wants no texts, none are read: the memory is something else.
Status no_texts(const ferrule_session& s, const ferrule_tensor& t) {
  const std::vector<Port>& ports = s.session->inputs();
  const auto port = std::ranges::find(ports, text(t.name), &Port::name);
  if (t.type != FERRULE_STRING || port == ports.end() || port->type.dtype == DType::string)
    return {};
  return error(Code::input_mismatch, "inputs", escape(t.name), name(DType::string),
               str(port->type));
}

Result<std::map<std::string, Tensor>> inputs_of(const ferrule_session& s,
                                                const ferrule_tensor* inputs, size_t count) {
  FERRULE_TRY(given({{"inputs", inputs}}, count));
  std::map<std::string, Tensor> out;
  for (size_t k = 0; k < count; ++k) {
    FERRULE_TRY(no_texts(s, inputs[k]));
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
  FERRULE_ASSIGN(auto in, inputs_of(*s, inputs, count));
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
  return {{"producer", m.producer}, {"producer_name", m.producer_name},
          {"graph", m.graph},       {"graph_description", m.graph_description},
          {"domain", m.domain},     {"description", m.description},
          {"version", m.version},   {"ir_version", m.ir_version},
          {"metadata", m.metadata}};
}

}  // namespace

const char* ferrule_version(void) { return FERRULE_VERSION; }

// No status is no error.
const char* ferrule_status_code(const ferrule_status* s) {
  return s ? code_name(s->error.code).data() : "";
}
int32_t ferrule_status_exit_code(const ferrule_status* s) {
  return s ? static_cast<int32_t>(exit_code(s->error.code)) : 0;
}
const char* ferrule_status_place(const ferrule_status* s) {
  return s ? s->error.place.c_str() : "";
}
const char* ferrule_status_message(const ferrule_status* s) {
  return s ? s->error.message.c_str() : "";
}
const char* ferrule_status_hint(const ferrule_status* s) { return s ? s->error.hint.c_str() : ""; }
const char* ferrule_status_text(const ferrule_status* s) { return s ? s->text.c_str() : ""; }
void ferrule_status_free(ferrule_status* s) { delete s; }

ferrule_status* ferrule_session_create(const char* path, const ferrule_session_options* options,
                                       ferrule_session** session) {
  return create(options, session, [&](SessionOptions o) -> Result<Session> {
    FERRULE_TRY(given({{"path", path}}));
    return Session::load(path, std::move(o));
  });
}
ferrule_status* ferrule_session_create_from_bytes(const void* model, size_t bytes,
                                                  const ferrule_session_options* options,
                                                  ferrule_session** session) {
  return create(options, session, [&](SessionOptions o) -> Result<Session> {
    FERRULE_TRY(given({{"model", model}}));
    return Session::load_bytes({static_cast<const char*>(model), bytes}, std::move(o));
  });
}
void ferrule_session_free(ferrule_session* s) { delete s; }

size_t ferrule_session_input_count(const ferrule_session* s) { return s ? s->inputs.size() : 0; }
size_t ferrule_session_output_count(const ferrule_session* s) { return s ? s->outputs.size() : 0; }
ferrule_status* ferrule_session_input(const ferrule_session* s, size_t index, ferrule_port* port) {
  return port_of(s, &ferrule_session::inputs, index, port);
}
ferrule_status* ferrule_session_output(const ferrule_session* s, size_t index, ferrule_port* port) {
  return port_of(s, &ferrule_session::outputs, index, port);
}

ferrule_status* ferrule_session_view(ferrule_session* s, int32_t view, const ferrule_tensor* shapes,
                                     size_t count, char** text_out) {
  if (text_out) *text_out = nullptr;
  return guarded("view", [&]() -> Status {
    FERRULE_TRY(given({{"session", s}, {"json", text_out}}));
    json j;
    if (view == FERRULE_VIEW_MODEL) {
      j = model_of(s->session->info());
    } else if (view == FERRULE_VIEW_PLAN || view == FERRULE_VIEW_JOURNAL ||
               view == FERRULE_VIEW_DEVICE) {
      FERRULE_ASSIGN(const Shapes sizes, shapes_of(shapes, count));
      FERRULE_ASSIGN(const auto c, s->session->plan(sizes));
      j = view == FERRULE_VIEW_PLAN      ? plan_of(*c)
          : view == FERRULE_VIEW_JOURNAL ? journal_of(*c)
                                         : json{{"backend", c->backend()},
                                                {"device", c->device()},
                                                {"target", c->plan().target}};
    } else {
      return misuse("view", fmt::format("{} is none of ferrule_view", view));
    }
    j["schema_version"] = 1;
    *text_out = handed_out(j.dump(-1, ' ', false, json::error_handler_t::replace));
    return {};
  });
}
void ferrule_text_free(char* text) { delete[] text; }

void ferrule_session_cancel(ferrule_session* s) {
  if (s) s->cancel->stop();
}

ferrule_status* ferrule_run(ferrule_session* s, const ferrule_tensor* inputs, size_t input_count,
                            const char* const* wanted, size_t wanted_count,
                            ferrule_results** results) {
  if (results) *results = nullptr;
  return guarded("run", [&]() -> Status {
    FERRULE_TRY(given({{"session", s}, {"results", results}}));
    FERRULE_TRY(given({{"wanted", wanted}}, wanted_count));
    std::vector<std::string> names;
    for (size_t k = 0; k < wanted_count; ++k) names.push_back(text(wanted[k]));
    if (names.empty())
      for (const Port& p : s->session->outputs()) names.push_back(p.name);
    for (const std::string& name : names)
      if (std::ranges::find(s->session->outputs(), name, &Port::name) ==
          s->session->outputs().end())
        return unknown_output(*s, name);
    for (const Port& p : s->session->outputs())
      if (contains(names, p.name) && p.type.dtype != DType::optional)
        FERRULE_TRY(tensor_output(p.name, p.type.dtype));
    FERRULE_ASSIGN(auto out, run(s, inputs, input_count));
    for (const std::string& name : names) FERRULE_TRY(tensor_output(name, out.at(name).dtype()));
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
    FERRULE_TRY(given({{"session", s}}));
    FERRULE_TRY(given({{"outputs", outputs}}, output_count));
    const std::vector<Port>& ports = s->session->outputs();
    for (size_t k = 0; k < output_count; ++k)
      if (std::ranges::find(ports, text(outputs[k].name), &Port::name) == ports.end())
        return unknown_output(*s, text(outputs[k].name));
    FERRULE_ASSIGN(const auto in, inputs_of(*s, inputs, input_count));
    FERRULE_ASSIGN(const auto out, s->session->run(in));
    for (size_t k = 0; k < output_count; ++k) {  // all of them are checked before one is written
      const ferrule_tensor& to = outputs[k];
      const Tensor& from = out.at(to.name);
      FERRULE_ASSIGN(const std::vector<int64_t> dims, dims_of(to));
      FERRULE_TRY(tensor_output(to.name, from.dtype()));
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

size_t ferrule_results_count(const ferrule_results* r) { return r ? r->tensors.size() : 0; }
ferrule_status* ferrule_results_get(const ferrule_results* r, size_t index,
                                    ferrule_tensor* tensor) {
  return guarded("results", [&]() -> Status {
    FERRULE_TRY(given({{"results", r}, {"tensor", tensor}}));
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
