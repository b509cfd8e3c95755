// ferrule in C++17: the C interface (ferrule.h) with objects that free themselves and errors that are
// thrown. Header only: it needs nothing but libferrule.
//
//   ferrule::Session session("model.onnx");
//   std::vector<float> x(1 * 3 * 224 * 224);
//   auto results = session.run({ferrule::tensor("x", {1, 3, 224, 224}, x.data())});
//   const float* y = results[0].data<float>();
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ferrule.h"

namespace ferrule {
// Names of its own in object files: those of libferrule's inside are others', and so are those of
// another version's header.
inline namespace v0 {

class Error : public std::runtime_error {
 public:
  explicit Error(ferrule_status* s)
      : std::runtime_error(ferrule_status_text(s)),
        code(ferrule_status_code(s)),
        place(ferrule_status_place(s)),
        message(ferrule_status_message(s)),
        hint(ferrule_status_hint(s)),
        exit_code(ferrule_status_exit_code(s)) {
    ferrule_status_free(s);
  }
  std::string code, place, message, hint;
  int exit_code;
};

namespace detail {
inline void check(ferrule_status* s) {
  if (s) throw Error(s);
}
}  // namespace detail

template <class T>
struct type_of;
#define FERRULE_TYPE_OF(T, type) \
  template <>                    \
  struct type_of<T> {            \
    static constexpr int32_t value = type; \
  }
FERRULE_TYPE_OF(float, FERRULE_FLOAT);
FERRULE_TYPE_OF(double, FERRULE_DOUBLE);
FERRULE_TYPE_OF(int8_t, FERRULE_INT8);
FERRULE_TYPE_OF(int16_t, FERRULE_INT16);
FERRULE_TYPE_OF(int32_t, FERRULE_INT32);
FERRULE_TYPE_OF(int64_t, FERRULE_INT64);
FERRULE_TYPE_OF(uint8_t, FERRULE_UINT8);
FERRULE_TYPE_OF(uint16_t, FERRULE_UINT16);
FERRULE_TYPE_OF(uint32_t, FERRULE_UINT32);
FERRULE_TYPE_OF(uint64_t, FERRULE_UINT64);
FERRULE_TYPE_OF(bool, FERRULE_BOOL);
#undef FERRULE_TYPE_OF

/// A tensor in the caller's memory, by name.
struct Tensor {
  std::string name;
  std::vector<int64_t> dims;
  int32_t type;
  void* memory;
  size_t bytes;

  ferrule_tensor c() const {
    return {name.c_str(), memory, dims.data(), bytes, static_cast<int32_t>(dims.size()), type};
  }
};
template <class T>
Tensor tensor(std::string name, std::vector<int64_t> dims, const T* data) {
  size_t count = 1;
  for (int64_t d : dims) count *= static_cast<size_t>(d);
  return {std::move(name), std::move(dims), type_of<T>::value, const_cast<T*>(data), count * sizeof(T)};
}

/// What a run made; its tensors live as long.
class Results {
 public:
  explicit Results(ferrule_results* r) : results_(r, ferrule_results_free) {}
  size_t size() const { return ferrule_results_count(results_.get()); }

  class View {
   public:
    explicit View(const ferrule_tensor& t) : t_(t) {}
    std::string name() const { return t_.name; }
    int32_t type() const { return t_.type; }
    std::vector<int64_t> dims() const { return {t_.dims, t_.dims + t_.rank}; }
    size_t bytes() const { return t_.bytes; }
    const void* memory() const { return t_.data; }
    template <class T>
    const T* data() const {
      if (t_.type != type_of<T>::value) throw std::invalid_argument(name() + " has another element type");
      return static_cast<const T*>(t_.data);
    }

   private:
    ferrule_tensor t_;
  };
  View operator[](size_t k) const {
    ferrule_tensor t{};
    detail::check(ferrule_results_get(results_.get(), k, &t));
    return View(t);
  }

 private:
  std::unique_ptr<ferrule_results, void (*)(ferrule_results*)> results_;
};

struct Port {
  std::string name;
  int32_t type;
  bool ranked;
  std::vector<int64_t> dims;         ///< -1: open
  std::vector<std::string> symbols;  ///< by dim: the name of an open size
};

class Session {
 public:
  explicit Session(const std::string& path, const ferrule_session_options* options = nullptr) {
    ferrule_session* s = nullptr;
    detail::check(ferrule_session_create(path.c_str(), options, &s));
    session_.reset(s);
  }
  Session(const void* model, size_t bytes, const ferrule_session_options* options = nullptr) {
    ferrule_session* s = nullptr;
    detail::check(ferrule_session_create_from_bytes(model, bytes, options, &s));
    session_.reset(s);
  }

  std::vector<Port> inputs() const {
    return ports(ferrule_session_input_count(session_.get()), ferrule_session_input);
  }
  std::vector<Port> outputs() const {
    return ports(ferrule_session_output_count(session_.get()), ferrule_session_output);
  }

  /// By any thread.
  Results run(const std::vector<Tensor>& inputs, const std::vector<std::string>& wanted = {}) {
    const auto in = c(inputs);
    std::vector<const char*> names;
    for (const std::string& w : wanted) names.push_back(w.c_str());
    ferrule_results* r = nullptr;
    detail::check(ferrule_run(session_.get(), in.data(), in.size(), names.data(), names.size(), &r));
    return Results(r);
  }
  void run_into(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
    const auto in = c(inputs), out = c(outputs);
    detail::check(ferrule_run_into(session_.get(), in.data(), in.size(), out.data(), out.size()));
  }

  /// JSON. `shapes`: of inputs of open size; their memory is not read.
  std::string view(ferrule_view what, const std::vector<Tensor>& shapes = {}) {
    const auto in = c(shapes);
    char* text = nullptr;
    detail::check(ferrule_session_view(session_.get(), what, in.data(), in.size(), &text));
    const std::unique_ptr<char, void (*)(char*)> held(text, ferrule_text_free);
    return text;
  }
  void cancel() { ferrule_session_cancel(session_.get()); }
  ferrule_session* get() const { return session_.get(); }

 private:
  static std::vector<ferrule_tensor> c(const std::vector<Tensor>& tensors) {
    std::vector<ferrule_tensor> out;
    for (const Tensor& t : tensors) out.push_back(t.c());
    return out;
  }
  template <class Get>
  std::vector<Port> ports(size_t count, Get get) const {
    std::vector<Port> out;
    for (size_t k = 0; k < count; ++k) {
      ferrule_port p = ferrule_port_init();
      detail::check(get(session_.get(), k, &p));
      const bool ranked = p.rank >= 0;
      Port port{p.name, p.type, ranked, {}, {}};
      for (int32_t d = 0; d < p.rank; ++d) port.dims.push_back(p.dims[d]), port.symbols.push_back(p.symbols[d]);
      out.push_back(std::move(port));
    }
    return out;
  }
  std::unique_ptr<ferrule_session, void (*)(ferrule_session*)> session_{nullptr, ferrule_session_free};
};

/// JSON about a model that nothing is run of: which layers are fused, why others are not (`node`, `other`, `rule` of the question).
inline std::string ask(ferrule_about about, const ferrule_question& question) {
  char* text = nullptr;
  detail::check(ferrule_ask(about, &question, &text));
  const std::unique_ptr<char, void (*)(char*)> held(text, ferrule_text_free);
  return text;
}

}  // namespace v0
}  // namespace ferrule
