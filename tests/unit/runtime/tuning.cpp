// Tuning files: what is written is read again, and every mistake is one clear error with its place.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/diagnostics.h"
#include "runtime/tuning.h"

namespace ferrule::test {
namespace {

struct File {
  std::string path;
  explicit File(const std::string& text)
      : path((std::filesystem::temp_directory_path() /
              fmt::format("ferrule-tuning-{}.yaml", getpid()))
                 .string()) {
    std::ofstream(path) << text;
  }
  ~File() { std::filesystem::remove(path); }
};

Error mistake(const std::string& text) {
  File f(text);
  auto t = read_tuning(f.path, Limits{});
  REQUIRE_FALSE(t.has_value());
  return t.error();
}

const std::string kHead = "tuning: 1\nmachine: \"M\"\ntarget: cpu-avx2\nthreads: 2\n";

}  // namespace

TEST_CASE("a tuning is read as it was written") {
  Tuning t{"AMD \"quoted\" \\ name", "cpu-avx512", 2, {}};
  t.problems["Conv f32[1x3x8x8] threads=2 cpu-avx512"] = {"onednn",
                                                          {{"onednn", 12.5}, {"first", 13.25}}};
  t.problems["Conv other"] = {"depthwise", {}};
  File f(to_text(t));
  auto read = read_tuning(f.path, Limits{});
  REQUIRE_MESSAGE(read.has_value(), (read ? "" : render(read.error())));
  CHECK(read->machine == t.machine);
  CHECK(read->target == t.target);
  CHECK(read->threads == 2);
  REQUIRE(read->problems.size() == 2);
  const Tuning::Entry* e = read->find("Conv f32[1x3x8x8] threads=2 cpu-avx512");
  REQUIRE(e);
  CHECK(e->use == "onednn");
  CHECK(e->microseconds.at("first") == 13.25);
  CHECK(read->find("Conv") == nullptr);
  CHECK(to_text(*read) == to_text(t));
  File none(to_text(Tuning{"M", "cpu-avx2", 1, {}}));
  CHECK(read_tuning(none.path, Limits{}).has_value());
}

TEST_CASE("mistakes in a tuning file are found, with their place") {
  CHECK(read_tuning("/nowhere/tuning.yaml", Limits{}).error().code == Code::file_not_found);
  CHECK_FALSE(mistake("").message.empty());
  CHECK(mistake("- 1\n").message.find("map") != std::string::npos);
  CHECK(mistake(kHead).message.find("launches") != std::string::npos);
  const Error unknown = mistake(kHead + "lanuches: []\nlaunches: []\n");
  CHECK(unknown.place.find(":5:1") != std::string::npos);
  CHECK(unknown.hint.find("launches") != std::string::npos);
  const Error version = mistake("tuning: 99\nmachine: M\ntarget: t\nthreads: 1\nlaunches: []\n");
  CHECK(version.message.find("99") != std::string::npos);
  CHECK(version.hint.find("ferrule tune") != std::string::npos);
  const Error twice = mistake(
      kHead + "launches:\n  - {problem: \"p\", use: onednn}\n  - {problem: \"p\", use: first}\n");
  CHECK(twice.message.find("twice") != std::string::npos);
  CHECK(twice.place.find(":7:") != std::string::npos);
  CHECK(mistake(kHead + "launches:\n  - {problem: \"p\"}\n").message.find("use") !=
        std::string::npos);
  CHECK(mistake(kHead + "launches:\n  - {problem: \"p\", use: first, us: {first: fast}}\n")
            .place.find(":6:") != std::string::npos);
  CHECK(mistake(kHead + "launches: [").code == Code::yaml_syntax);
}

}  // namespace ferrule::test
