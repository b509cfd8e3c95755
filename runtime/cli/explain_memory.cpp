// explain --stage memory: which value lies where in the arena from which step to which, drawn and
// listed. explain --stage launches: what the null backend records.
#include <algorithm>
#include <iostream>
#include <sstream>

#include "runtime/cli/cli.h"
#include "runtime/memory_plan.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

constexpr int kColumns = 100, kRows = 24;

/// A slot of the arena and what it holds.
struct Row {
  Slot slot;
  std::vector<std::string> values;
  bool scratch = false;
  char letter = '?';
};

struct Map {
  std::vector<Row> rows;         ///< by offset, then first step
  std::vector<size_t> layer_of;  ///< step -> layer
  std::vector<int64_t> alive;    ///< step -> bytes
  int fullest = 0;               ///< the step with the most alive
};

Map map_of(Compiled& compiled) {
  const Storage& s = *compiled.executable().storage();
  const Plan& plan = compiled.plan();
  Map m;
  for (size_t layer = 0; layer < compiled.lowered().layers.size(); ++layer)
    m.layer_of.insert(m.layer_of.end(), compiled.lowered().layers[layer].launches.size(), layer);
  for (const Slot& slot : s.slots) m.rows.push_back({slot, {}});
  for (uint32_t v = 0; v < s.by_value.size(); ++v)
    if (s.by_value[v] >= 0)
      m.rows[static_cast<size_t>(s.by_value[v])].values.push_back(plan.graph.value({v}).name);
  for (size_t layer = 0; layer < s.temporaries.size(); ++layer)
    for (int slot : s.temporaries[layer])
      if (slot >= 0)
        m.rows[static_cast<size_t>(slot)].values.push_back("inside " + plan.layers[layer].name);
  std::erase_if(m.rows,
                [](const Row& r) { return r.slot.kind != Slot::Kind::arena || r.slot.bytes == 0; });
  for (const Slot& slot : s.scratch)
    if (slot.bytes)
      m.rows.push_back(
          {slot,
           {"scratch of " + plan.layers[m.layer_of[static_cast<size_t>(slot.first)]].name},
           true});
  std::stable_sort(m.rows.begin(), m.rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a.slot.offset, a.slot.first) < std::pair(b.slot.offset, b.slot.first);
  });
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  size_t next = 0;
  for (Row& r : m.rows) r.letter = r.scratch ? '#' : kLetters[next++ % kLetters.size()];
  m.alive.assign(static_cast<size_t>(std::max(1, s.steps)), 0);
  for (const Row& r : m.rows)
    for (int k = r.slot.first; k <= r.slot.last && k < s.steps; ++k)
      m.alive[static_cast<size_t>(k)] += r.slot.bytes;
  m.fullest = static_cast<int>(std::max_element(m.alive.begin(), m.alive.end()) - m.alive.begin());
  return m;
}

std::string layer_name(const Compiled& c, const Map& m, int step) {
  const auto k = static_cast<size_t>(step);
  return k < m.layer_of.size() ? escape(c.plan().layers[m.layer_of[k]].name, 80) : "";
}

std::string names(const Row& r) {
  std::string out = r.values.empty() ? "" : escape(r.values[0], 80);
  if (r.values.size() > 1) out += fmt::format(" and {} in place", r.values.size() - 1);
  return out;
}

/// Addresses grow upwards, steps to the right; a cell shows who lives at its middle, `.` nobody.
void draw(const Map& m, const Storage& s) {
  const int columns = std::min(kColumns, s.steps);
  if (!columns || !s.arena_bytes) return;
  for (int row = kRows - 1; row >= 0; --row) {
    const int64_t address = s.arena_bytes * (2 * row + 1) / (2 * kRows);
    std::string line(static_cast<size_t>(columns), '.');
    for (const Row& r : m.rows) {
      if (address < r.slot.offset || address >= r.slot.offset + r.slot.bytes) continue;
      for (int c = 0; c < columns; ++c) {
        const int first = c * s.steps / columns, last = (c + 1) * s.steps / columns - 1;
        if (r.slot.first <= last && r.slot.last >= first) line[static_cast<size_t>(c)] = r.letter;
      }
    }
    std::cout << fmt::format("{:>9.2f} |{}|\n", static_cast<double>(address) / 1048576, line);
  }
  std::cout << fmt::format("{:>9}  step 0 to {}{}\n", "MiB", s.steps - 1,
                           columns < s.steps ? fmt::format(", about {:.1f} steps a column",
                                                           static_cast<double>(s.steps) / columns)
                                             : "");
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / 1048576; }

void print(Compiled& c, const Map& m) {
  const Storage& s = *c.executable().storage();
  const double above = s.least_bytes ? 100.0 * static_cast<double>(s.arena_bytes - s.least_bytes) /
                                           static_cast<double>(s.least_bytes)
                                     : 0;
  std::cout << fmt::format("arena            {:>12} bytes ({:.2f} MiB), {} steps\n", s.arena_bytes,
                           mib(s.arena_bytes), s.steps);
  std::cout << fmt::format("lower bound      {:>12} bytes (the arena is {:.1f} % above it)\n",
                           s.least_bytes, above);
  std::cout << fmt::format("packed constants {:>12} bytes\n", c.executable().packed_bytes());
  std::cout << fmt::format("fullest step     {:>12} bytes at step {}: {}\n\n",
                           m.alive[static_cast<size_t>(m.fullest)], m.fullest,
                           layer_name(c, m, m.fullest));
  draw(m, s);
  std::cout << fmt::format("\n  {:>12} {:>12} {:>11}  {}\n", "offset", "bytes", "steps",
                           "value (* alive at the fullest step)");
  for (const Row& r : m.rows)
    std::cout << fmt::format("{} {:>12} {:>12} {:>11}  {}{}\n", r.letter, r.slot.offset,
                             r.slot.bytes, fmt::format("{}-{}", r.slot.first, r.slot.last),
                             r.slot.first <= m.fullest && m.fullest <= r.slot.last ? "* " : "  ",
                             names(r));
}

json to_json(Compiled& c, const Map& m) {
  const Storage& s = *c.executable().storage();
  json slots = json::array(), steps = json::array();
  for (const Row& r : m.rows) {
    json values = json::array();
    for (const std::string& v : r.values) values.push_back(escape(v, 4096));
    slots.push_back({{"offset", r.slot.offset},
                     {"bytes", r.slot.bytes},
                     {"first", r.slot.first},
                     {"last", r.slot.last},
                     {"scratch", r.scratch},
                     {"values", values}});
  }
  for (int k = 0; k < s.steps; ++k)
    steps.push_back({{"layer", layer_name(c, m, k)}, {"bytes", m.alive[static_cast<size_t>(k)]}});
  return {{"schema_version", kSchemaVersion},
          {"arena_bytes", s.arena_bytes},
          {"least_bytes", s.least_bytes},
          {"packed_bytes", c.executable().packed_bytes()},
          {"fullest_step", m.fullest},
          {"steps", steps},
          {"slots", slots}};
}

}  // namespace

Result<Exit> explain_memory(const Common& common) {
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  FERRULE_ASSIGN(Session session, Session::load(common.model, options));
  FERRULE_ASSIGN(Compiled * c, session.compile(options.engine.shapes));
  if (!c->executable().storage())
    return error(Code::usage, "--stage memory",
                 fmt::format("backend {} plans no arena; use --backend cpu", c->backend()));
  const Map m = map_of(*c);
  if (common.json)
    print_json(to_json(*c, m));
  else
    print(*c, m);
  return Exit::ok;
}

Result<Exit> explain_launches(const Common& common) {
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  options.backend = "null";
  FERRULE_ASSIGN(Session session, Session::load(common.model, options));
  FERRULE_ASSIGN(Compiled * c, session.compile(options.engine.shapes));
  if (!common.json) {
    std::cout << c->executable().text();
    return Exit::ok;
  }
  nlohmann::json launches = nlohmann::json::array();
  std::istringstream lines(c->executable().text());
  for (std::string line; std::getline(lines, line);) launches.push_back(line);
  print_json({{"schema_version", kSchemaVersion},
              {"target", c->plan().target},
              {"stage", "launches"},
              {"launches", launches}});
  return Exit::ok;
}

}  // namespace ferrule::cli
