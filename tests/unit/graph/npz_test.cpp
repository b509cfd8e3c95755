#include "engine/graph/npz.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

using namespace ferrule;

namespace {

struct Scratch {  // a file name of our own, removed at the end
  std::string path = "/tmp/ferrule_npz_test." + std::to_string(getpid()) + ".npz";
  ~Scratch() { std::remove(path.c_str()); }
};

std::string slurp(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}
void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::map<std::string, Tensor> sample() {
  return {{"x", Tensor::of_f32({2, 3}, {1, 2, 3, 4, 5, -0.5f})},
          {"a/b:0", Tensor::of_i64({}, {42})},
          {"empty", Tensor::of_f32({0, 4}, {})},
          {"h", Tensor::scalar(DType::bf16, 1.5, {1})},
          {"flags", Tensor::of<uint8_t>(DType::boolean, {3}, std::vector<uint8_t>{1, 0, 1})},
          {"text", Tensor({2}, std::vector<std::string>{"h\xc3\xa9", ""})}};
}

}  // namespace

TEST_CASE("npz: what is written is read back") {
  Scratch f;
  REQUIRE(write_npz(f.path, sample(), false));
  auto back = read_npz(f.path);
  REQUIRE(back);
  CHECK(back->size() == sample().size());
  for (const auto& [key, t] : sample()) {
    REQUIRE(back->count(key) == 1);
    CHECK_MESSAGE(back->at(key).identical(t), key);
  }
}

TEST_CASE("npz: nothing is overwritten without force") {
  Scratch f;
  const std::map<std::string, Tensor> one{{"x", Tensor::of_i64({2}, {7, -7})}},
      other{{"x", Tensor::of_i64({1}, {1})}};
  REQUIRE(write_npz(f.path, one, false));
  auto refused = write_npz(f.path, other, false);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::file_exists);
  CHECK(read_npz(f.path)->at("x").to_i64() == std::vector<int64_t>{7, -7});
  REQUIRE(write_npz(f.path, other, true));
  CHECK(read_npz(f.path)->at("x").to_i64() == std::vector<int64_t>{1});
  CHECK(write_npz("/nonexistent/x.npz", one, true).error().code == Code::file_not_written);
}

TEST_CASE("npy: column-major order, and headers that numpy does not write") {
  Scratch f;
  auto npy = [](std::string header, const std::string& data) {
    header += '\n';
    return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header +
           data;
  };
  const std::string six("\x01\x02\x03\x04\x05\x06", 6);
  spill(f.path, npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", six));
  CHECK(read_npy(f.path)->to_i64() == std::vector<int64_t>{1, 3, 5, 2, 4, 6});
  CHECK(read_npz(f.path)->at("").to_i64() == std::vector<int64_t>{1, 3, 5, 2, 4, 6});
  for (const char* header :
       {"{'descr': '>q4', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999999, 9999999999999999), }",
        "{'descr': '<U999999999', 'fortran_order': False, 'shape': (2,), }", "import os", "{",
        ""}) {
    spill(f.path, npy(header, six));
    auto t = read_npy(f.path);
    REQUIRE_MESSAGE(!t, header);
    CHECK(t.error().code == Code::bad_npz);
  }
}

TEST_CASE("npz: damage anywhere is an error or harmless, never a crash") {
  Scratch f;
  CHECK(read_npz("/nonexistent.npz").error().code == Code::file_not_found);
  CHECK(read_npz("/tmp").error().code == Code::file_not_found);
  REQUIRE(write_npz(f.path, sample(), true));
  const std::string whole = slurp(f.path);
  for (size_t cut = 0; cut < whole.size(); cut += 7) {
    spill(f.path, whole.substr(0, cut));
    CHECK(!read_npz(f.path));
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x55);
    spill(f.path, bytes);
    (void)read_npz(f.path);
  }
}
