// cache: what is kept on disk between runs; check it, empty it. Proof stamps beside the compiled
// kernels stay: they are empty files, and a stamp that is lost costs seconds.
#include "codegen/cache.h"

#include <iostream>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "runtime/cli/cli.h"

namespace ferrule::cli {
namespace {

struct Opened {
  std::shared_ptr<DiskCache> cache;
  int64_t limit = 0;
};

Result<Opened> open(const Common& common) {
  FERRULE_ASSIGN(EngineOptions options, engine_options(common));
  auto cache = DiskCache::open(options.cache, options.limits.cache_bytes);
  if (!cache)
    return error(Code::usage, "cache", "there is no cache: name a folder with --cache DIR");
  return Opened{std::move(cache), options.limits.cache_bytes};
}

/// A folder that is refused is what the user asked about, so it is an error here.
Status usable(DiskCache& cache) {
  if (std::string why = cache.complaint(); !why.empty()) return error(Code::usage, "cache", why);
  return {};
}

Result<Exit> stat(const Common& common) {
  FERRULE_ASSIGN(Opened o, open(common));
  DiskCache::Contents c = o.cache->contents(false);
  FERRULE_TRY(usable(*o.cache));
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"folder", o.cache->folder()},
                {"entries", c.entries},
                {"bytes", c.bytes},
                {"limit_bytes", o.limit},
                {"unfinished", c.parts}});
    return Exit::ok;
  }
  std::cout << fmt::format("{}: {}, {:.1f} MiB of at most {:.1f} MiB\n", escape(o.cache->folder()),
                           counted(c.entries, "kernel"), static_cast<double>(c.bytes) / 1048576,
                           static_cast<double>(o.limit) / 1048576);
  if (c.parts) std::cout << counted(c.parts, "unfinished file") << "\n";
  return Exit::ok;
}

Result<Exit> verify(const Common& common) {
  FERRULE_ASSIGN(Opened o, open(common));
  DiskCache::Contents c = o.cache->contents(true);
  FERRULE_TRY(usable(*o.cache));
  size_t removed = 0;
  for (const std::string& name : c.damaged) removed += o.cache->remove(name);
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"folder", o.cache->folder()},
                {"entries", c.entries},
                {"other_builds", c.foreign},
                {"damaged", c.damaged},
                {"removed", removed}});
  } else {
    for (const std::string& name : c.damaged) std::cout << fmt::format("damaged: {}\n", name);
    std::cout << fmt::format("{}, {} of other builds of ferrule, {} damaged, {} removed\n",
                             counted(c.entries, "kernel"), c.foreign, c.damaged.size(), removed);
  }
  return c.damaged.empty() ? Exit::ok : Exit::differs;
}

Result<Exit> clear(const Common& common) {
  FERRULE_ASSIGN(Opened o, open(common));
  const int64_t removed = o.cache->clear();
  FERRULE_TRY(usable(*o.cache));
  if (common.json)
    print_json(
        {{"schema_version", kSchemaVersion}, {"folder", o.cache->folder()}, {"removed", removed}});
  else
    std::cout << fmt::format("{}: {} removed\n", escape(o.cache->folder()),
                             counted(removed, "file"));
  return Exit::ok;
}

}  // namespace

void add_cache(CLI::App& app, Common& common, int& exit) {
  auto* group = app.add_subcommand(
      "cache", "the compiled kernels kept on disk: count, verify or remove them");
  group->require_subcommand(1);
  auto add = [&](const char* name, const char* text, Command body) {
    auto* c = group->add_subcommand(name, text);
    c->footer(
        fmt::format("Examples:\n  ferrule cache {0}\n  ferrule cache {0} --cache /srv/ferrule\n"
                    "  ferrule cache {0} --json",
                    name));
    add_common(*c, common, false);
    set_body(*c, common, exit, std::move(body));
  };
  add("stat", "how much is kept, and where", stat);
  add("verify",
      "read every entry and remove those that are damaged; exit status 1 if there were any",
      verify);
  add("clear", "remove all of them", clear);
  group->footer(
      "Examples:\n  ferrule cache stat\n  ferrule cache verify --cache /srv/ferrule\n  ferrule "
      "cache clear");
}

}  // namespace ferrule::cli
