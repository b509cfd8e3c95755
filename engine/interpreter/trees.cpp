// Ensembles of decision trees of ai.onnx.ml: read into one form, and each row followed from root to
// leaf. A tree whose nodes lead in a circle is refused.
#include <map>
#include <set>

#include "engine/interpreter/learned.h"

namespace ferrule::interp {
namespace {

enum class Test : uint8_t { leq, lt, gte, gt, eq, neq, member, leaf };

struct Split {
  Test test = Test::leaf;
  bool missing = false;  ///< NaN passes
  int64_t feature = 0, yes = -1, no = -1;
  double value = 0;
  std::vector<double> members;
  std::vector<std::pair<int64_t, double>> leaf;  ///< target, weight
};

struct Forest {
  std::vector<Split> nodes;
  std::vector<int64_t> roots;
  int64_t features = 0, targets = 0;  ///< one more than the largest that is named
  std::set<int64_t> named;            ///< targets
  bool positive = true;               ///< no weight is below 0
};

bool passes(const Split& n, double x) {
  if (std::isnan(x)) return n.missing || n.test == Test::neq;
  switch (n.test) {
    case Test::leq:
      return x <= n.value;
    case Test::lt:
      return x < n.value;
    case Test::gte:
      return x >= n.value;
    case Test::gt:
      return x > n.value;
    case Test::eq:
      return x == n.value;
    case Test::neq:
      return x != n.value;
    default:
      return contains(n.members, x);
  }
}

std::vector<double> numbers(const Call& c, std::string_view name) {
  const Attr* a = c.n.attrs.find(name);
  if (!a) return {};
  if (const auto* t = std::get_if<Tensor>(a))
    return is_float(t->dtype()) || is_int(t->dtype()) ? t->to_f64() : std::vector<double>{};
  const auto* v = std::get_if<std::vector<double>>(a);
  return v ? *v : std::vector<double>{};
}
/// NAME, or NAME_as_tensor where that is given.
std::vector<double> either(const Call& c, const std::string& name) {
  auto v = numbers(c, name + "_as_tensor");
  return v.empty() ? numbers(c, name) : v;
}

/// Every branch leads to a node, no path comes back, and no feature or target is below 0. Sets what
/// the forest says of all its nodes.
Status checked(const Call& c, Forest& f) {
  const int64_t n = std::ssize(f.nodes);
  for (const Split& s : f.nodes) {
    for (const auto& [target, weight] : s.leaf) {
      if (target < 0) return c.bad("target {}", target);
      f.targets = std::max(f.targets, target + 1);
      f.named.insert(target);
      f.positive &= weight >= 0;
    }
    if (s.test == Test::leaf) continue;
    if (s.yes < 0 || s.yes >= n || s.no < 0 || s.no >= n)
      return c.bad_attr("nodes_truenodeids", "a node leads to none of {}", n);
    if (s.feature < 0) return c.bad_attr("nodes_featureids", "feature {}", s.feature);
    f.features = std::max(f.features, s.feature + 1);
  }
  std::vector<uint8_t> state(f.nodes.size(), 0);  // 1: on the path, 2: done
  for (int64_t root : f.roots) {
    if (root < 0 || root >= n) return c.bad_attr("tree_roots", "node {} of {}", root, n);
    std::vector<int64_t> path{root};
    while (!path.empty()) {
      const int64_t at = path.back();
      const Split& s = f.nodes[at];
      if (state[at] == 0) {
        state[at] = 1;
        if (s.test != Test::leaf)
          for (int64_t next : {s.yes, s.no}) {
            if (state[next] == 1) return c.bad("a tree whose nodes lead in a circle");
            if (state[next] == 0) path.push_back(next);
          }
        continue;
      }
      state[at] = 2;
      path.pop_back();
    }
  }
  return {};
}

/// The form with a list of nodes that are leaves or not, by tree and number within it.
Result<Forest> numbered(const Call& c, const std::string& kind) {
  const Dims trees = c.n.attrs.ints("nodes_treeids"), ids = c.n.attrs.ints("nodes_nodeids"),
             features = c.n.attrs.ints("nodes_featureids"),
             yes = c.n.attrs.ints("nodes_truenodeids"), no = c.n.attrs.ints("nodes_falsenodeids"),
             missing = c.n.attrs.ints("nodes_missing_value_tracks_true");
  const auto values = either(c, "nodes_values");
  const Attr* a = c.n.attrs.find("nodes_modes");
  const auto* modes = a ? std::get_if<std::vector<std::string>>(a) : nullptr;
  const size_t n = trees.size();
  if (!modes || modes->size() != n || ids.size() != n || features.size() != n || yes.size() != n ||
      no.size() != n || values.size() != n || (!missing.empty() && missing.size() != n))
    return c.bad("its lists of nodes differ in length");
  static const std::map<std::string_view, Test> kTests = {
      {"BRANCH_LEQ", Test::leq}, {"BRANCH_LT", Test::lt}, {"BRANCH_GTE", Test::gte},
      {"BRANCH_GT", Test::gt},   {"BRANCH_EQ", Test::eq}, {"BRANCH_NEQ", Test::neq},
      {"LEAF", Test::leaf}};
  std::map<std::pair<int64_t, int64_t>, int64_t> at;
  std::map<int64_t, int64_t> roots;
  Forest f;
  for (size_t k = 0; k < n; ++k) {
    at.emplace(std::pair(trees[k], ids[k]), k);
    roots.emplace(trees[k], k);
  }
  const auto find = [&](int64_t tree, int64_t id) {
    const auto it = at.find({tree, id});
    return it == at.end() ? -1 : it->second;
  };
  for (size_t k = 0; k < n; ++k) {
    const auto mode = kTests.find((*modes)[k]);
    if (mode == kTests.end()) return c.bad_attr("nodes_modes", "\"{}\"", escape((*modes)[k]));
    f.nodes.push_back({mode->second,
                       !missing.empty() && missing[k] != 0,
                       features[k],
                       find(trees[k], yes[k]),
                       find(trees[k], no[k]),
                       values[k],
                       {},
                       {}});
  }
  for (const auto& [_, root] : roots) f.roots.push_back(root);
  const Dims leaf_trees = c.n.attrs.ints(kind + "_treeids"),
             leaf_ids = c.n.attrs.ints(kind + "_nodeids"), targets = c.n.attrs.ints(kind + "_ids");
  const auto weights = either(c, kind + "_weights");
  if (leaf_trees.size() != targets.size() || leaf_ids.size() != targets.size() ||
      weights.size() != targets.size())
    return c.bad("its lists of leaves differ in length");
  for (size_t k = 0; k < targets.size(); ++k) {
    const int64_t node = find(leaf_trees[k], leaf_ids[k]);
    if (node < 0) return c.bad("a leaf {} of tree {} that is none", leaf_ids[k], leaf_trees[k]);
    f.nodes[node].leaf.emplace_back(targets[k], weights[k]);
  }
  return f;
}

/// TreeEnsemble's form: branches and leaves are two lists.
Result<Forest> branches_and_leaves(const Call& c) {
  const Dims features = c.n.attrs.ints("nodes_featureids"),
             yes = c.n.attrs.ints("nodes_truenodeids"), no = c.n.attrs.ints("nodes_falsenodeids"),
             yes_leaf = c.n.attrs.ints("nodes_trueleafs"),
             no_leaf = c.n.attrs.ints("nodes_falseleafs"),
             targets = c.n.attrs.ints("leaf_targetids"),
             missing = c.n.attrs.ints("nodes_missing_value_tracks_true"),
             roots = c.n.attrs.ints("tree_roots");
  const auto splits = numbers(c, "nodes_splits"), modes = numbers(c, "nodes_modes"),
             weights = numbers(c, "leaf_weights"), members = numbers(c, "membership_values");
  const size_t n = features.size();
  if (yes.size() != n || no.size() != n || yes_leaf.size() != n || no_leaf.size() != n ||
      splits.size() != n || modes.size() != n || (!missing.empty() && missing.size() != n) ||
      weights.size() != targets.size())
    return c.bad("its lists of nodes differ in length");
  Forest f;
  const int64_t leaves = std::ssize(targets), none = static_cast<int64_t>(n) + leaves;
  size_t member = 0;
  for (size_t k = 0; k < n; ++k) {
    if (!(modes[k] >= 0 && modes[k] <= 6)) return c.bad_attr("nodes_modes", "{}", modes[k]);
    Split& s = f.nodes.emplace_back();
    s.test = static_cast<Test>(static_cast<int>(modes[k]));
    s.missing = !missing.empty() && missing[k] != 0;
    s.feature = features[k], s.value = splits[k];
    const auto branch = [&](int64_t to, int64_t leaf) {
      if (to < 0) return none;
      return leaf ? (to < leaves ? static_cast<int64_t>(n) + to : none)
                  : (to < static_cast<int64_t>(n) ? to : none);
    };
    s.yes = branch(yes[k], yes_leaf[k]), s.no = branch(no[k], no_leaf[k]);
    if (s.test != Test::member) continue;
    for (; member < members.size() && !std::isnan(members[member]); ++member)
      s.members.push_back(members[member]);
    if (member++ >= members.size()) return c.bad_attr("membership_values", "too few of them");
  }
  for (size_t k = 0; k < targets.size(); ++k) {
    Split& s = f.nodes.emplace_back();
    s.leaf.emplace_back(targets[k], weights[k]);
  }
  f.roots = roots;
  return f;
}

/// `read`(call), checked; once for all runs of a node.
template <class Read>
Result<std::shared_ptr<const Forest>> forest_of(const Call& c, Read&& read) {
  Prepared* kept = c.options.prepared;
  if (kept && kept->of == &c.n && kept->what)
    return std::static_pointer_cast<const Forest>(kept->what);
  FERRULE_ASSIGN(Forest f, read(c));
  FERRULE_TRY(checked(c, f));
  auto forest = std::make_shared<const Forest>(std::move(f));
  if (kept) *kept = {&c.n, forest};
  return forest;
}

enum class Aggregate : uint8_t { average, sum, min, max };

/// What the leaves say, by row and target, and of which targets any leaf says something.
struct Sums {
  std::vector<double> of;
  std::vector<bool> said;
};

/// `single`: sums are rounded to f32 step by step, as ONNX Runtime has them: whether one is above a
/// threshold, and which of two is larger, hangs on that.
Result<Sums> summed(const Call& c, const Forest& f, int64_t targets, Aggregate how,
                    bool single = false) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype()) && !is_integral(x.dtype())) return c.unsupported_type(x);
  if (x.rank() != 2) return c.bad("its input is {}, no matrix", text(x.dims()));
  const int64_t rows = x.dims()[0], width = x.dims()[1];
  FERRULE_TRY(c.fits(DType::f64, {rows, targets}));
  if (f.features > width)
    return c.bad_attr("nodes_featureids", "feature {} of {}", f.features - 1, width);
  if (f.targets > targets) return c.bad("target {} of {}", f.targets - 1, targets);
  const View<double> v(x);
  Sums sums;
  auto& [y, set] = sums;
  y.resize(static_cast<size_t>(rows * targets)), set.resize(y.size());
  for (int64_t r = 0; r < rows; ++r) {
    if (c.options.cancel && c.options.cancel->stopped())
      return error(Code::cancelled, c.place(), "time is up");
    for (int64_t root : f.roots) {
      const Split* s = &f.nodes[root];
      while (s->test != Test::leaf)
        s = &f.nodes[passes(*s, v[r * width + s->feature]) ? s->yes : s->no];
      for (const auto& [target, weight] : s->leaf) {
        const auto at = static_cast<size_t>(r * targets + target);
        if (how == Aggregate::min || how == Aggregate::max)
          y[at] = !set[at]                ? weight
                  : how == Aggregate::min ? std::min(y[at], weight)
                                          : std::max(y[at], weight);
        else
          y[at] = single ? static_cast<float>(y[at] + weight) : y[at] + weight;
        set[at] = true;
      }
    }
  }
  if (how == Aggregate::average && !f.roots.empty())
    for (double& sum : y) sum /= static_cast<double>(f.roots.size());
  return sums;
}

Outputs tree_ensemble(const Call& c) {
  FERRULE_ASSIGN(const auto forest, forest_of(c, branches_and_leaves));
  const Forest& f = *forest;
  const int64_t targets = c.n.attrs.i("n_targets", 1), how = c.n.attrs.i("aggregate_function", 1);
  if (targets < 1) return c.bad_attr("n_targets", "{}", targets);
  if (how < 0 || how > 3) return c.bad_attr("aggregate_function", "{}", how);
  if (c.n.attrs.i("post_transform", 0) != 0) return c.unsupported("it transforms its results");
  FERRULE_ASSIGN(const Sums y, summed(c, f, targets, static_cast<Aggregate>(how)));
  return one(store(c.input(0)->dtype(), {c.input(0)->dims()[0], targets}, y.of));
}

Outputs tree_regressor(const Call& c) {
  FERRULE_ASSIGN(const auto forest,
                 forest_of(c, [](const Call& of) { return numbered(of, "target"); }));
  const Forest& f = *forest;
  const int64_t targets = c.n.attrs.i("n_targets", 1);
  if (targets < 1) return c.bad_attr("n_targets", "{}", targets);
  static const std::map<std::string_view, Aggregate> kHow = {{"AVERAGE", Aggregate::average},
                                                             {"SUM", Aggregate::sum},
                                                             {"MIN", Aggregate::min},
                                                             {"MAX", Aggregate::max}};
  const std::string word = c.n.attrs.s("aggregate_function", "SUM");
  const auto how = kHow.find(word);
  if (how == kHow.end()) return c.bad_attr("aggregate_function", "\"{}\"", escape(word));
  FERRULE_ASSIGN(Sums sums, summed(c, f, targets, how->second));
  auto& y = sums.of;
  const auto base = either(c, "base_values");
  if (!base.empty() && std::ssize(base) != targets && base.size() != 1)
    return c.bad_attr("base_values", "{} of them for {} targets", base.size(), targets);
  for (size_t i = 0; i < y.size() && !base.empty(); ++i) y[i] += base[i % base.size()];
  const std::string post = c.n.attrs.s("post_transform", "NONE");
  for (auto row = std::span(y); !row.empty(); row = row.subspan(targets))
    FERRULE_TRY(transform_targets(c, post, row.first(targets)));
  return one(store(DType::f32, {c.input(0)->dims()[0], targets}, y));
}

/// Scores of two classes, of which leaves may name one alone: what ONNX leaves open is here as ONNX
/// Runtime has it.
class TwoClasses {
 public:
  TwoClasses(const Forest& f, std::vector<double> base, std::string how)
      : base_(std::move(base)),
        how_(std::move(how)),
        positive_(f.positive),
        alone_(f.named.size() == 1) {}

  /// One row: which class it is, and its scores in place.
  Result<int64_t> decide(const Call& c, std::span<double> row, bool first, bool second) const {
    const auto f32 = [](double v) { return static_cast<double>(static_cast<float>(v)); };
    if (base_.size() == 2) {
      if (second) {
        row[1] = f32(base_[1] + row[0]);
        row[0] = -row[1];
      } else {
        row[1] = f32(row[1] + base_[1]);
        row[0] = f32(row[0] + base_[0]);
      }
    } else if (base_.size() == 1) {
      row[0] = f32(row[0] + base_[0]);
    }
    const bool complement = alone_ && positive_;
    const double score = second ? row[1] : first ? row[0] : 0;
    const int64_t chosen = score > (complement ? 0.5 : 0);
    if (!second && base_.size() != 2) {
      FERRULE_ASSIGN(const auto scores, two_scores(c, how_, row[0], complement));
      row[0] = scores[0], row[1] = scores[1];
      return chosen;
    }
    if (!first) row[0] = 0;  // what no leaf names is 0, with a base value, too
    if (!second) row[1] = 0;
    FERRULE_TRY(post_transform(c, how_, row));
    return chosen;
  }

  bool alone() const { return alone_; }

 private:
  std::vector<double> base_;
  std::string how_;
  bool positive_;  ///< no weight is below 0
  bool alone_;     ///< all leaves name the same class
};

Outputs tree_classifier(const Call& c) {
  FERRULE_ASSIGN(const auto forest,
                 forest_of(c, [](const Call& of) { return numbered(of, "class"); }));
  const Forest& f = *forest;
  const Labels labels = labels_of(c, "classlabels_int64s");
  const auto classes = static_cast<int64_t>(labels.size());
  if (classes < 1) return c.bad("no names of classes");
  const bool single = c.input(0)->dtype() != DType::f64;
  FERRULE_ASSIGN(Sums sums, summed(c, f, classes, Aggregate::sum, single));
  auto& y = sums.of;
  const auto base = either(c, "base_values");
  if (!base.empty() && std::ssize(base) != classes && base.size() != 1)
    return c.bad_attr("base_values", "{} of them for {} classes", base.size(), classes);
  const std::string how = c.n.attrs.s("post_transform", "NONE");
  const TwoClasses two(f, base, how);
  const int64_t rows = c.input(0)->dims()[0];
  std::vector<int64_t> best;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = std::span(y).subspan(r * classes, classes);
    const auto said = [&](int64_t k) { return sums.said[static_cast<size_t>(r * classes + k)]; };
    if (classes == 2) {
      FERRULE_ASSIGN(const int64_t chosen, two.decide(c, row, said(0), said(1)));
      best.push_back(chosen);
      continue;
    }
    int64_t top = -1;
    for (int64_t k = 0; k < classes; ++k) {
      const bool added = k < std::ssize(base);
      if (added) row[k] = single ? static_cast<float>(row[k] + base[k]) : row[k] + base[k];
      if ((added || said(k)) && (top < 0 || row[k] > row[top])) top = k;
    }
    best.push_back(std::max<int64_t>(top, 0));
    FERRULE_TRY(post_transform(c, how, row));
  }
  // Of two classes that leaves name both, ONNX Runtime says 1 and 0, whatever their numbers are.
  const bool plain = classes == 2 && labels.words.empty() && !two.alone();
  FERRULE_ASSIGN(Tensor chosen, named(c, plain ? Labels{{}, {0, 1}} : labels, best));
  std::vector<Tensor> out{std::move(chosen)};
  out.push_back(store(DType::f32, {rows, classes}, y));
  return out;
}

}  // namespace

std::vector<Entry> tree_table() {
  return {{"ml.TreeEnsemble", tree_ensemble, 1},
          {"ml.TreeEnsembleClassifier", tree_classifier, 1},
          {"ml.TreeEnsembleRegressor", tree_regressor, 1}};
}

}  // namespace ferrule::interp
