// Models that are wrong, on purpose or not: each is refused with its own code, one line, at once.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/graph/operator_name.h"
#include "engine/onnx/import.h"
#include "tests/unit/onnx/wire.h"

using namespace ferrule;
using namespace wire;
namespace fs = std::filesystem;

namespace {

std::string code_of(const Result<Imported>& r) {
  if (r) return "fine";
  CHECK(r.error().message.find('\n') == std::string::npos);
  CHECK(r.error().place.find('\x1b') == std::string::npos);
  CHECK(r.error().message.find('\x1b') == std::string::npos);
  return std::string(code_name(r.error().code));
}
std::string import_code(const std::string& bytes, const ImportOptions& options = {}) {
  return code_of(import_bytes(bytes, options));
}
std::string message_of(const Result<Imported>& r) {
  return r ? "" : r.error().place + ": " + r.error().message;
}

const std::string kX = in(value("x", 1, {2, 3})), kY = out(value("y", 1, {2, 3}));

/// A folder of its own that goes with the test.
struct Folder {
  fs::path path;
  Folder() {
    std::string t = (fs::temp_directory_path() / "ferrule_test_XXXXXX").string();
    REQUIRE(::mkdtemp(t.data()));
    path = t;
  }
  ~Folder() { fs::remove_all(path); }
  std::string write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << bytes;
    return (path / name).string();
  }
};

}  // namespace

TEST_CASE("hostile: what is no model") {
  CHECK(import_code("") == "not_onnx");
  CHECK(import_code("x") == "not_onnx");
  CHECK(import_code(std::string("\x1f\x8b\x08", 3)) == "not_onnx");
  CHECK(message_of(import_bytes(std::string("PK\x03\x04", 4))).find("zip") != std::string::npos);
  CHECK(import_code(std::string(1000, '\0')) == "not_onnx");
  CHECK(code_of(import_file("/no/such/file.onnx")) == "file_not_found");
  CHECK(code_of(import_file("/dev/zero")) == "file_not_found");
  CHECK(code_of(import_file("/tmp")) == "file_not_found");
  CHECK(code_of(import_file(std::string("a\0b", 3))) == "file_not_found");
  Folder f;
  CHECK(code_of(import_file(f.write("empty.onnx", ""))) == "not_onnx");
  std::string fifo = (f.path / "fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(code_of(import_file(fifo)) == "file_not_found");
  std::string sparse = f.write("sparse.onnx", "");
  REQUIRE(::truncate(sparse.c_str(), int64_t{1} << 40) == 0);
  CHECK(code_of(import_file(sparse)) == "limit_exceeded");
}

TEST_CASE(
    "hostile: every prefix and every flipped bit of a model is refused or taken, never worse") {
  std::string good = model(str(1, node("Relu", {"x"}, {"t"})) +
                           str(5, tensor("w", 1, {2, 3}, raw(std::string(24, 'a')))) +
                           str(1, node("Add", {"t", "w"}, {"y"})) + kX + kY);
  REQUIRE(import_code(good) == "fine");
  for (size_t n = 0; n < good.size(); ++n) CHECK(import_code(good.substr(0, n)) != "fine");
  for (size_t n = 0; n < good.size(); ++n)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[n] = static_cast<char>(bad[n] ^ (1 << bit));
      import_code(bad);
    }
}

TEST_CASE("hostile: headers") {
  std::string g = str(1, node("Relu", {"x"}, {"y"})) + kX + kY;
  CHECK(import_code(model(g)) == "fine");
  CHECK(import_code(model(g, "", 0)) == "model_invalid");
  CHECK(import_code(model(g, "", INT64_MAX)) == "model_invalid");
  CHECK(import_code(model(g, "", 8, 0)) == "opset_unsupported");
  CHECK(import_code(model(g, "", 8, -1)) == "opset_unsupported");
  CHECK(import_code(model(g, "", 8, 9999)) == "opset_unsupported");
  CHECK(import_code(model(g, opset(13))) == "fine");  // twice the same
  CHECK(import_code(model(g, opset(12))) == "model_invalid");
  CHECK(import_code(num(1, 8) + opset(13)) == "model_invalid");
  CHECK(import_code(num(1, 8) + str(7, g)) == "model_invalid");
}

TEST_CASE("hostile: graphs") {
  auto m = [](std::initializer_list<std::string> nodes, const std::string& rest = kX + kY) {
    std::string g;
    for (const auto& n : nodes) g += str(1, n);
    return model(g + rest);
  };
  CHECK(import_code(m({node("Add", {"x", "b"}, {"a"}, "", "first"),
                       node("Relu", {"a"}, {"b"}, "", "second"), node("Relu", {"b"}, {"y"})})) ==
        "graph_cycle");
  auto cycle = message_of(
      import_bytes(m({node("Add", {"x", "b"}, {"a"}, "", "first"),
                      node("Relu", {"a"}, {"b"}, "", "second"), node("Relu", {"b"}, {"y"})})));
  CHECK(cycle.find("\"first\"") != std::string::npos);
  CHECK(cycle.find("\"second\"") != std::string::npos);
  CHECK(import_code(m({node("Add", {"x", "y"}, {"y"})})) == "graph_cycle");
  CHECK(import_code(m({node("Relu", {"nowhere"}, {"y"})})) == "dangling_input");
  CHECK(message_of(import_bytes(m({node("Relu", {"nowhere"}, {"y"}, "", "r")})))
            .find("\"nowhere\"") != std::string::npos);
  CHECK(import_code(m({node("Relu", {"x"}, {"z"})})) == "dangling_input");
  CHECK(import_code(m({node("Relu", {"x"}, {"y"}), node("Neg", {"x"}, {"y"})})) ==
        "duplicate_value");
  CHECK(import_code(m({node("Relu", {"x"}, {"x"})})) == "duplicate_value");
  CHECK(import_code(m({node("Relu", {"x"}, {"y"})}, kX + kX + kY)) == "duplicate_value");
  CHECK(import_code(m({node("", {"x"}, {"y"})})) == "model_invalid");
  CHECK(import_code(m({node("Relu", {}, {"y"})})) == "model_invalid");
  CHECK(import_code(m({node("Relu", {"x"}, {"y"}, attr_int("nonsense", 1))})) == "model_invalid");
  CHECK(import_code(m({}, kX + out(value("x", 1, {2, 3})))) == "fine");
  // Out of order, but sound: sorted, and said.
  auto r = import_bytes(m({node("Neg", {"t"}, {"y"}), node("Relu", {"x"}, {"t"})}));
  REQUIRE(r);
  CHECK(r->notes.size() == 1);
  CHECK(r->graph.node(r->graph.order()[0]).op == "Relu");
}

TEST_CASE("hostile: unknown operators name node, operator and opset") {
  auto r = import_bytes(model(str(1, node("Frobnicate", {"x"}, {"y"}, "", "n\x1b[31m")) + kX + kY));
  CHECK(code_of(r) == "unknown_operator");
  CHECK(exit_code(r.error().code) == Exit::unsupported);
  CHECK(message_of(r).find("Frobnicate (opset 13)") != std::string::npos);
  CHECK(message_of(r).find("n\\x1B[31m") != std::string::npos);
  CHECK(import_code(model(str(1, node("Gelu", {"x"}, {"y"})) + kX + kY)) ==
        "unknown_operator");  // newer than 13
  CHECK(import_code(model(str(1, node("Foo", {"x"}, {"y"}, "", "", "com.x")) + kX + kY,
                          opset(1, "com.x"))) == "unknown_operator");
}

TEST_CASE("hostile: types and tensors") {
  auto with = [](const std::string& t) {
    return model(str(1, node("Add", {"x", "w"}, {"y"})) + str(5, t) + kX + kY);
  };
  CHECK(import_code(with(tensor("w", 1, {3}, raw(std::string(12, 'a'))))) == "fine");
  CHECK(import_code(with(tensor("w", 1, {3}, raw(std::string(8, 'a'))))) == "model_invalid");
  CHECK(import_code(with(tensor("w", 1, {3}, raw(std::string(16, 'a'))))) == "model_invalid");
  CHECK(import_code(with(tensor("w", 1, {-3}, raw(std::string(12, 'a'))))) == "model_invalid");
  CHECK(import_code(with(tensor("w", 1, {int64_t{1} << 32, int64_t{1} << 32}, raw("")))) ==
        "model_invalid");
  CHECK(import_code(with(tensor("w", 1, {int64_t{1} << 40}, raw("")))) == "model_invalid");
  CHECK(import_code(with(tensor("w", 0, {3}, raw(std::string(12, 'a'))))) != "fine");
  CHECK(import_code(with(tensor("w", 99, {3}, raw(std::string(12, 'a'))))) != "fine");
  CHECK(import_code(model(str(1, node("Relu", {"x"}, {"y"})) + in(value("x", 99, {1})) + kY)) !=
        "fine");
  CHECK(import_code(model(str(1, node("Relu", {"x"}, {"y"})) + in(value("x", 1, {-7})) + kY)) ==
        "bad_shape");
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += num(1, 1);
  CHECK(import_code(with(deep + num(2, 1) + str(8, "w") + raw("aaaa"))) == "limit_exceeded");
  CHECK(import_code(model(str(1, node("MatMul", {"x", "x"}, {"y"})) + kX + kY)) == "bad_shape");
  // A stale declaration is dropped, and said.
  auto r =
      import_bytes(model(str(1, node("Relu", {"x"}, {"y"})) + kX + out(value("y", 1, {4, 4}))));
  REQUIRE(r);
  CHECK(r->notes.size() == 1);
  CHECK(str(r->graph.value(r->graph.outputs()[0]).type) == "f32[2,3]");
}

TEST_CASE("hostile: element types that an operator does not take") {
  auto m = [](const std::string& graph) { return code_of(import_text("g (" + graph + "}")); };
  auto said = [](const std::string& graph) { return message_of(import_text("g (" + graph + "}")); };
  CHECK(m("int64[2] x) => (int64[2] y) { y = Softmax(x)") == "bad_type");
  CHECK(m("string[2] x) => (string[2] y) { y = Relu(x)") == "bad_type");
  CHECK(m("string[2] x) => (string[2] y) { y = Identity(x)") == "fine");
  CHECK(m("float[2] x, float[2] i) => (float[2] y) { y = Gather(x, i)") == "bad_type");
  CHECK(m("float[2] x, int32[2] i) => (float[2] y) { y = Gather(x, i)") == "fine");
  CHECK(m("float[2] x, float16[2] z) => (float[2] y) { y = Concat<axis=0>(x, z)") == "bad_type");
  CHECK(m("float[2] x, float[2] z) => (float[4] y) { y = Concat<axis=0>(x, z)") == "fine");
  CHECK(said("float[2] x, int64[2] z) => (float[2] y) { [sum] y = Add(x, z)") ==
        "node \"sum\": input 0 of Add is f32 and input 1 is i64: ONNX wants one type");
  // A loop carries what it likes, and nested graphs are looked at, too.
  const std::string loop =
      "float[2] x, int64[1] z, int64 n, bool c) => (float[2] y, int64[1] w) { y, w = Loop(n, c, x, "
      "z)<body = b (int64 i, bool d, float[2] p, int64[1] q) => (bool e, float[2] r, int64[1] s) { "
      "e = Identity(d) ";
  CHECK(m(loop + "r = Relu(p) s = Neg(q) }>") == "fine");
  CHECK(m(loop + "r = Relu(p) s = Floor(q) }>") == "bad_type");
  CHECK(m("seq(float[2]) x, int64 i) => (float[2] y) { y = SequenceAt(x, i)") == "fine");
}

TEST_CASE("hostile: attributes") {
  auto m = [](const char* body, const char* inputs = "float[1,4,8,8] x") {
    return code_of(import_text(std::string("g (") + inputs + ") => (float[] y) {" + body + "}"));
  };
  CHECK(m("y = Softmax<axis=9>(x)") != "fine");
  CHECK(m("y = Transpose<perm=[0,1,2,7]>(x)") != "fine");
  CHECK(m("y = MaxPool<kernel_shape=[0,1]>(x)") == "bad_attribute");
  CHECK(m("y = MaxPool<kernel_shape=[2,2], strides=[0,0]>(x)") == "bad_attribute");
  CHECK(m("y = MaxPool<kernel_shape=[2,2], pads=[9223372036854775807,0,0,0]>(x)") ==
        "bad_attribute");
  CHECK(m("y = DepthToSpace<blocksize=0>(x)") != "fine");
  CHECK(m("y = DepthToSpace<blocksize=3>(x)") == "bad_shape");
  CHECK(m("y = Cast<to=77>(x)") == "bad_attribute");
  CHECK(m("s = Constant<value_ints=[1,1,1152921504606846976,1152921504606846976]>() y = Expand(x, "
          "s)") != "crash");
  CHECK(m("s = Constant<value_ints=[9223372036854775807,2]>() y = ConstantOfShape(s)") == "fine");
  CHECK(m("s = Constant<value_ints=[-4]>() y = ConstantOfShape(s)") == "bad_shape");
}

TEST_CASE("hostile: the doubling bomb of functions is refused at once") {
  auto function = [](int i, int calls) {
    std::string f = str(1, "f" + std::to_string(i)) + str(4, "x") + str(5, "y") + str(10, "bomb") +
                    str(9, num(2, 13)) + str(9, str(1, "bomb") + num(2, 1));
    std::string callee = i == 0 ? "Relu" : "f" + std::to_string(i - 1),
                domain = i == 0 ? "" : "bomb";
    std::string from = "x";
    for (int c = 0; c < calls; ++c) {
      std::string to = c + 1 == calls ? "y" : "t" + std::to_string(c);
      f += str(7, node(callee, {from}, {to}, "", "", domain));
      from = to;
    }
    return str(25, f);
  };
  auto bomb = [&](int depth, int calls) {
    std::string fs = opset(1, "bomb");
    for (int i = 0; i < depth; ++i) fs += function(i, calls);
    return model(
        str(1, node("f" + std::to_string(depth - 1), {"x"}, {"y"}, "", "call", "bomb")) + kX + kY,
        fs);
  };
  auto start = std::chrono::steady_clock::now();
  CHECK(import_code(bomb(31, 2)) == "limit_exceeded");
  CHECK(import_code(bomb(99, 2)) == "limit_exceeded");
  CHECK(import_code(bomb(101, 1)) == "limit_exceeded");  // one call more than allowed
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  auto r = import_bytes(bomb(3, 2));
  REQUIRE(r);
  CHECK(r->graph.live_nodes() == 8);
  CHECK(import_code(bomb(100, 1)) == "fine");
}

TEST_CASE("hostile: functions that call themselves") {
  auto f = [](const char* name, const char* callee) {
    return str(25, str(1, name) + str(4, "x") + str(5, "y") + str(10, "r") + str(9, num(2, 13)) +
                       str(9, str(1, "r") + num(2, 1)) +
                       str(7, node(callee, {"x"}, {"y"}, "", "", "r")));
  };
  std::string call = str(1, node("a", {"x"}, {"y"}, "", "", "r")) + kX + kY;
  CHECK(import_code(model(call, opset(1, "r") + f("a", "a"))) == "model_invalid");
  CHECK(import_code(model(call, opset(1, "r") + f("a", "b") + f("b", "a"))) == "model_invalid");
  CHECK(import_code(model(call, opset(1, "r") + f("a", "b") + f("a", "b"))) == "model_invalid");
}

TEST_CASE("hostile: nested graphs") {
  auto nest = [](int depth) {
    std::string g = str(1, node("Relu", {"x"}, {"o"})) + str(2, "g") + out(value("o", 1, {2, 3}));
    for (int i = 0; i < depth; ++i)
      g = str(1,
              node("If", {"c"}, {"o"},
                   attr_graph("then_branch", g) +
                       attr_graph("else_branch", str(1, node("Neg", {"x"}, {"o"})) + str(2, "e") +
                                                     out(value("o", 1, {2, 3}))))) +
          str(2, "g") + out(value("o", 1, {2, 3}));
    return num(1, 8) + opset(13) + str(7, g + kX + in(value("c", 9, {})));
  };
  CHECK(import_code(nest(1)) == "fine");
  CHECK(import_code(nest(20)) == "fine");
  CHECK(import_code(nest(40)) != "fine");
  CHECK(import_code(nest(1000)) == "not_onnx");  // protobuf's own recursion limit
}

TEST_CASE("external data: beside the model and nowhere else") {
  Folder f;
  std::string bytes(24, '\x3f');
  f.write("w.bin", "........" + bytes);
  f.write("sub/w.bin", bytes);
  auto entry = [](const char* key, const std::string& v) {
    return str(13, str(1, key) + str(2, v));
  };
  auto with = [&](const std::string& more) {
    std::string t = tensor("w", 1, {2, 3}, more + num(14, 1));
    f.write("m.onnx", model(str(1, node("Add", {"x", "w"}, {"y"})) + str(5, t) + kX + kY));
    return import_file((f.path / "m.onnx").string());
  };
  auto code = [&](const std::string& more) { return code_of(with(more)); };
  auto r = with(entry("location", "w.bin") + entry("offset", "8") + entry("length", "24"));
  REQUIRE(r);
  CHECK(r->graph.constant(r->graph.find_value("w"))->at_f64(5) == doctest::Approx(0.7470588));
  CHECK(code(entry("location", "sub/w.bin")) == "fine");
  CHECK(code(entry("location", "w.bin") + entry("offset", "4")) == "fine");
  CHECK(code(entry("location", "w.bin") + entry("offset", "3")) == "fine");  // not aligned: copied
  for (const char* bad : {"../w.bin", "sub/../w.bin", "/etc/passwd", "/proc/self/mem", "",
                          "none.bin", "sub", "..", "*/_ORT_MEM_ADDR_/*"})
    CHECK(code(entry("location", bad)) == "external_data");
  CHECK(code(entry("location", std::string("w.bin\0x", 7))) == "external_data");
  CHECK(code(entry("location", std::string(100000, 'a'))) == "external_data");
  std::string good = entry("location", "w.bin");
  CHECK(code(good + entry("offset", "9")) == "external_data");
  CHECK(code(good + entry("offset", "-1")) == "external_data");
  CHECK(code(good + entry("offset", "eight")) == "external_data");
  CHECK(code(good + entry("offset", "9223372036854775807")) == "external_data");
  CHECK(code(good + entry("length", "1152921504606846976")) == "external_data");
  CHECK(code(good + entry("length", "8")) == "external_data");
  CHECK(code(good + good) == "external_data");
  CHECK(code("") == "external_data");
  fs::create_symlink("/etc/passwd", f.path / "link.bin");
  CHECK(code(entry("location", "link.bin")) == "external_data");
  fs::create_symlink("/etc", f.path / "linkdir");
  CHECK(code(entry("location", "linkdir/passwd")) == "external_data");
  fs::create_symlink("w.bin", f.path / "inside.bin");
  CHECK(code(entry("location", "inside.bin") + entry("offset", "8")) == "fine");
  REQUIRE(::mkfifo((f.path / "fifo.bin").c_str(), 0600) == 0);
  CHECK(code(entry("location", "fifo.bin")) == "external_data");
  // The layout of the Hugging Face cache: model and data are links to blobs in another folder.
  std::string blob = f.write(
      "hub/blobs/m",
      model(str(1, node("Add", {"x", "w"}, {"y"})) +
            str(5, tensor("w", 1, {2, 3}, entry("location", "m.data") + num(14, 1))) + kX + kY));
  f.write("hub/blobs/d", bytes);
  fs::create_directories(f.path / "hub/snapshots/r");
  fs::create_symlink("../../blobs/m", f.path / "hub/snapshots/r/m.onnx");
  fs::create_symlink("../../blobs/d", f.path / "hub/snapshots/r/m.data");
  CHECK(code_of(import_file((f.path / "hub/snapshots/r/m.onnx").string())) == "fine");
  // Bytes have no folder.
  std::ifstream file(blob, std::ios::binary);
  std::string whole((std::istreambuf_iterator<char>(file)), {});
  CHECK(import_code(whole) == "external_data");
}

TEST_CASE("limits: each is a number that can be raised") {
  Limits few;
  few.nodes = 2;
  ImportOptions options;
  options.limits = &few;
  std::string three =
      model(str(1, node("Relu", {"x"}, {"a"})) + str(1, node("Relu", {"a"}, {"b"})) +
            str(1, node("Relu", {"b"}, {"y"})) + kX + kY);
  CHECK(import_code(three, options) == "limit_exceeded");
  few.nodes = 3;
  CHECK(import_code(three, options) == "fine");
}

TEST_CASE("scale: a hundred thousand nodes in a second") {
  std::string g;
  std::string last = "x";
  for (int i = 0; i < 100000; ++i) {
    std::string next = i == 99999 ? "y" : "t" + std::to_string(i);
    g += str(1, node("Relu", {last}, {next}));
    last = next;
  }
  std::string bytes = model(g + kX + kY);
  auto start = std::chrono::steady_clock::now();
  CHECK(import_code(bytes) == "fine");
  auto took = std::chrono::steady_clock::now() - start;
  MESSAGE("100,000 nodes imported in " << std::chrono::duration<double>(took).count() << " s");
  CHECK(took < std::chrono::seconds(5));
}
