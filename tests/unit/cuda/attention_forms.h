// Attentions as models spell them, those that are cuDNN's and those that are not: run on the stub
// (tests/unit/cuda) and shown to cuDNN itself (tests/unit/cudnn), so that what is claimed, computed
// and supported are the same forms.
#pragma once
#include <doctest/doctest.h>

#include <string>

#include "codegen/cuda/library_attention.h"
#include "engine/base/diagnostics.h"
#include "engine/onnx/import.h"
#include "tests/unit/codegen/rule_groups.h"

namespace ferrule::cuda::test {

/// In texts: `$` the element type, `%` one quarter in it, `^` minus infinity and `#` its number,
/// `K` keys with heads first.
struct AttentionForm {
  const char* name;
  const char* text;
  bool library = true;
};

inline const AttentionForm kAttentions[] = {
    {"heads first",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v) => ($[2,3,5,16] y) { K s = MatMul(q, t)\n p = "
     "Softmax<axis=-1>(s)\n y = MatMul(p, v) }"},
    {"heads behind, scaled",
     "($[2,5,3,64] q, $[2,7,3,64] k, $[2,7,3,64] v) => ($[2,5,3,64] y) <$ c = {%}> "
     "{ Q = Transpose<perm=[0,2,1,3]>(q)\n T = Transpose<perm=[0,2,3,1]>(k)\n V = "
     "Transpose<perm=[0,2,1,3]>(v)\n s = MatMul(Q, T)\n u = Mul(s, c)\n"
     " p = Softmax<axis=-1>(u)\n o = MatMul(p, V)\n y = Transpose<perm=[0,2,1,3]>(o) }"},
    {"divided",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v) => ($[2,3,5,16] y) <$ c = {%}> "
     "{ K s = MatMul(q, t)\n u = Div(s, c)\n p = Softmax<axis=-1>(u)\n y = MatMul(p, v) }"},
    {"wider values",
     "($[1,2,9,8] q, $[1,2,20,8] k, $[1,2,20,24] v) => ($[1,2,9,24] y) { K s = MatMul(q, t)\n p = "
     "Softmax<axis=-1>(s)\n y = MatMul(p, v) }"},
    {"large heads",
     "($[1,2,33,128] q, $[1,2,65,128] k, $[1,2,65,128] v) => ($[1,2,33,128] y) <$ c = {%}> "
     "{ K s = MatMul(q, t)\n u = Mul(s, c)\n p = Softmax<axis=-1>(u)\n y = MatMul(p, v) }"},
    {"one batch axis",
     "($[6,5,40] q, $[6,7,40] k, $[6,7,40] v) => ($[6,5,40] y) "
     "{ t = Transpose<perm=[0,2,1]>(k)\n s = MatMul(q, t)\n p = Softmax<axis=-1>(s)\n y = "
     "MatMul(p, v) }"},
    {"no batch axis",
     "($[5,16] q, $[7,16] k, $[7,16] v) => ($[5,16] y) { t = Transpose<perm=[1,0]>(k)\n s = "
     "MatMul(q, t)\n p = Softmax<axis=-1>(s)\n y = MatMul(p, v) }"},
    {"one query",
     "($[2,3,1,64] q, $[2,3,77,64] k, $[2,3,77,64] v) => ($[2,3,1,64] y) { K s = MatMul(q, t)\n p "
     "= Softmax<axis=-1>(s)\n y = MatMul(p, v) }"},
    {"one key",
     "($[2,3,5,16] q, $[2,3,1,16] k, $[2,3,1,16] v) => ($[2,3,5,16] y) { K s = MatMul(q, t)\n p = "
     "Softmax<axis=-1>(s)\n y = MatMul(p, v) }"},
    {"one head of keys",
     "($[2,4,5,16] q, $[2,1,7,16] k, $[2,1,7,16] v) => ($[2,4,5,16] y) { K s = MatMul(q, t)\n p = "
     "Softmax<axis=-1>(s)\n y = MatMul(p, v) }"},
    {"mask of all",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v, $[2,3,5,7] m) => ($[2,3,5,16] y) "
     "{ K s = MatMul(q, t)\n u = Add(s, m)\n p = Softmax<axis=-1>(u)\n y = MatMul(p, v) }"},
    {"mask of keys",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v, $[2,1,1,7] m) => ($[2,3,5,16] y) <$ c = {%}> "
     "{ K s = MatMul(q, t)\n d = Mul(s, c)\n u = Add(m, d)\n p = Softmax<axis=-1>(u)\n y = "
     "MatMul(p, v) }"},
    {"mask of keys, one query",
     "($[2,3,1,16] q, $[2,3,77,16] k, $[2,3,77,16] v, $[2,1,1,77] m) => ($[2,3,1,16] y) "
     "{ K s = MatMul(q, t)\n u = Add(s, m)\n p = Softmax<axis=-1>(u)\n y = MatMul(p, v) }"},
    {"mask of queries and keys",
     "($[2,3,50,64] q, $[2,3,70,64] k, $[2,3,70,64] v, $[50,70] m) => ($[2,3,50,64] y) "
     "{ K s = MatMul(q, t)\n u = Add(s, m)\n p = Softmax<axis=-1>(u)\n y = MatMul(p, v) }"},
    {"mask of heads",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v, $[3,5,7] m) => ($[2,3,5,16] y) "
     "{ K s = MatMul(q, t)\n u = Add(s, m)\n p = Softmax<axis=-1>(u)\n y = MatMul(p, v) }"},
    {"mask of one batch axis",
     "($[4,5,16] q, $[4,7,16] k, $[4,7,16] v, $[4,1,7] m) => ($[4,5,16] y) "
     "{ t = Transpose<perm=[0,2,1]>(k)\n s = MatMul(q, t)\n u = Add(s, m)\n p = "
     "Softmax<axis=-1>(u)\n y = MatMul(p, v) }"},
    {"softmax in float",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v) => ($[2,3,5,16] y) <$ c = {%}> "
     "{ K s = MatMul(q, t)\n d = Mul(s, c)\n u = Cast<to=1>(d)\n p = Softmax<axis=-1>(u)\n w = "
     "Cast<to=#>(p)\n y = MatMul(w, v) }"},
    {"not a number made zero",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v, $[2,1,1,7] m) => ($[2,3,5,16] y) <$ z = {0}> "
     "{ K s = MatMul(q, t)\n u = Add(s, m)\n p = Softmax<axis=-1>(u)\n n = IsNaN(p)\n w = Where(n, "
     "z, p)\n y = MatMul(w, v) }"},
    {"all keys masked made zero",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v, $[2,1,5,7] m) => ($[2,3,5,16] y) "
     "<$ z = {0}, $ low = {^}, int64[1] axis = {-1}> "
     "{ K s = MatMul(q, t)\n u = Add(s, m)\n p = Softmax<axis=-1>(u)\n r = "
     "ReduceMax<keepdims=1>(m, axis)\n n = Equal(r, low)\n w = Where(n, z, p)\n y = MatMul(w, v) "
     "}"},
    {"a head of no multiple of 8",
     "($[2,3,5,12] q, $[2,3,7,12] k, $[2,3,7,12] v) => ($[2,3,5,12] y) "
     "{ K s = MatMul(q, t)\n p = Softmax<axis=-1>(s)\n y = MatMul(p, v) }",
     false},
    {"keys side by side",
     "($[2,3,5,16] q, $[2,3,16,8] k, $[2,3,8,16] v) => ($[2,3,5,16] y) { s = MatMul(q, k)\n p = "
     "Softmax<axis=-1>(s)\n y = MatMul(p, v) }",
     false},
    {"a batch of one set of keys",
     "($[2,3,5,16] q, $[1,3,7,16] k, $[1,3,7,16] v) => ($[2,3,5,16] y) "
     "{ K s = MatMul(q, t)\n p = Softmax<axis=-1>(s)\n y = MatMul(p, v) }",
     false},
    {"a mask of queries",
     "($[2,3,5,16] q, $[2,3,7,16] k, $[2,3,7,16] v, $[5,1] m) => ($[2,3,5,16] y) "
     "{ K s = MatMul(q, t)\n u = Add(s, m)\n p = Softmax<axis=-1>(u)\n y = MatMul(p, v) }",
     false},
    {"three batch axes",
     "($[2,2,3,5,16] q, $[2,2,3,7,16] k, $[2,2,3,7,16] v) => ($[2,2,3,5,16] y) "
     "{ t = Transpose<perm=[0,1,2,4,3]>(k)\n s = MatMul(q, t)\n p = Softmax<axis=-1>(s)\n y = "
     "MatMul(p, v) }",
     false},
};

/// Its graph. `type`: float16, bfloat16.
inline Graph attention_graph(const AttentionForm& form, const std::string& type) {
  std::string text = form.text;
  auto put = [&](const std::string& what, const std::string& with) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
      text.replace(at, what.size(), with);
  };
  put("K ", "t = Transpose<perm=[0,1,3,2]>(k)\n ");
  put("$", type);
  put("#", type == "float" ? "1" : type == "float16" ? "10" : "16");
  put("^", type == "float" ? "-inf" : type == "float16" ? "64512" : "65408");
  put("%", type == "float" ? "0.25" : type == "float16" ? "13312" : "16000");
  auto imported = import_text("agraph " + text);
  REQUIRE_MESSAGE(imported.has_value(), form.name, ": ",
                  (imported ? "" : render(imported.error())));
  return std::move(imported->graph);
}

/// The launch that the group of all of `g` becomes; values are those of `g`, constants among them.
inline Launch attention_launch(const Graph& g) {
  const Node& group = ferrule::test::group_by("attention", g);
  Launch l;
  l.kind = Launch::Kind::library;
  l.work = Work::attention;
  l.graph = group.body.get();
  l.roles = group.roles.get();
  l.node = l.graph->order()[0];
  l.inputs = group.inputs;
  l.outputs = group.outputs;
  return l;
}

}  // namespace ferrule::cuda::test
