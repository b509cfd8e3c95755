// What the files of the C interface share: errors, options and sizes as the engine has them.
#pragma once
#include <cstring>
#include <initializer_list>
#include <new>
#include <utility>

#include "runtime/c/ferrule.h"
#include "runtime/session.h"

struct ferrule_status {
  ferrule::Error error;
  std::string text;
};

namespace ferrule::c {

ferrule_status* of(Error e);
/// What was thrown, which is caught.
ferrule_status* thrown(const char* place);

/// What `body` returns as an error, or what the standard library throws when there is no memory.
template <class Body>
ferrule_status* guarded(const char* place, Body&& body) {
  try {
    Status s = body();
    return s ? nullptr : of(std::move(s).error());
  } catch (const std::exception&) {
    return thrown(place);
  }
}

tl::unexpected<Error> misuse(std::string place, const std::string& text);
/// errors: usage, where one of them is NULL, and `count` is not 0.
Status given(std::initializer_list<std::pair<const char*, const void*>> pointers, size_t count = 1);

/// That a caller's struct has a size, and nothing behind what this version knows.  errors: usage.
Status known(const void* s, size_t size, size_t ours, const char* name);
template <class S>
Status known(const S& s, const char* name) {
  return known(&s, s.size, sizeof s, name);
}
/// A member that the caller's version of a struct has, else 0.
template <class S, class T>
T member(const S* s, T S::* which) {
  if (!s) return T{};
  const auto* from = reinterpret_cast<const char*>(&(s->*which));
  const auto end = static_cast<size_t>(from - reinterpret_cast<const char*>(s)) + sizeof(T);
  return end <= s->size ? s->*which : T{};
}

/// "" for NULL.
std::string text(const char* s);
Result<SessionOptions> options_of(const ferrule_session_options* o);
Result<std::vector<int64_t>> dims_of(const ferrule_tensor& t);
Result<Shapes> shapes_of(const ferrule_tensor* shapes, size_t count);
/// For ferrule_text_free.
char* handed_out(const std::string& text);

}  // namespace ferrule::c
