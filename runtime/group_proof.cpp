#include "runtime/group_proof.h"

#include "engine/graph/compare.h"
#include "engine/graph/interpreter.h"
#include "engine/onnx/import.h"
#include "runtime/ferrule.h"

namespace ferrule {
namespace {

/// Values with both signs, around the kinks of activations, and beyond their saturation.
Tensor inputs_like(DType t, const std::vector<int64_t>& dims, uint64_t& state) {
  auto [tensor, bytes] = Tensor::allocate(t, dims);
  for (int64_t k = 0; k < tensor.numel(); ++k) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    double unit = static_cast<double>(state >> 11) * 0x1p-53;
    double value = is_float(t) ? (unit * 2 - 1) * (k % 5 == 0 ? 12 : 2) : static_cast<double>(state >> 62);
    Tensor one = Tensor::scalar(t, value);
    std::memcpy(static_cast<char*>(bytes) + k * size_bits(t) / 8, one.data(), static_cast<size_t>(size_bits(t)) / 8);
  }
  return tensor;
}

/// The case's graph with its symbolic sizes fixed; nothing where it has none that can be run.
std::optional<std::vector<Tensor>> inputs_of(const Graph& g, int64_t size, uint64_t& state) {
  std::vector<Tensor> inputs;
  for (ValueId v : g.inputs()) {
    const Type& t = g.value(v).type;
    if (!t.shape || size_bits(t.dtype) < 8) return std::nullopt;
    std::vector<int64_t> dims;
    for (const Dim& d : *t.shape) dims.push_back(d.value_or(size));
    inputs.push_back(inputs_like(t.dtype, dims, state));
  }
  return inputs;
}

/// "" or what differs.
std::string compare_case(const Graph& model, Session& session, const ProofContext& context, const std::vector<Tensor>& inputs) {
  InterpreterOptions options;
  options.ops = &session.knowledge().ops;
  options.limits = context.limits;
  auto want = interpret(model, inputs, options);
  if (!want) return "the interpreter: " + render(want.error());
  std::map<std::string, Tensor> named;
  for (size_t n = 0; n < inputs.size(); ++n) named[model.value(model.inputs()[n]).name] = inputs[n];
  auto got = session.run(named);
  if (!got) return render(got.error());
  for (size_t n = 0; n < want->size(); ++n) {
    const std::string& output = model.value(model.outputs()[n]).name;
    Difference d = compare(got->at(output), (*want)[n], model_tolerance((*want)[n].dtype()));
    if (!d.ok) return fmt::format("output {}: {}", escape(output), d.text);
  }
  return {};
}

}  // namespace

GroupProof prove_group(const Rule& rule, const std::shared_ptr<const Knowledge>& knowledge, const ProofContext& context,
                       const std::string& backend) {
  GroupProof proof;
  if (rule.kind == RuleKind::rewrite) return proof;
  uint64_t state = 0x9E3779B97F4A7C15u;
  for (const RuleTest& test : rule.tests) {
    // A case for another target is planned there, but cannot be run here.
    if (!test.fires || test.model.empty() || !test.edits.empty() || !test.target.empty() || !test.profile.empty()) continue;
    ImportOptions import;
    import.limits = context.limits;
    auto model = import_text(test.model, import);
    if (!model) {
      proof.wrong.push_back(fmt::format("{}: {}", test.name, render(model.error())));
      continue;
    }
    SessionOptions options;
    options.engine.rule_dirs = context.rule_dirs;
    options.engine.limits = *context.limits;
    options.backend = backend;
    auto session = Session::from_graph(std::move(*model->graph.clone()), knowledge, options);
    if (!session) {
      proof.wrong.push_back(fmt::format("{}: {}", test.name, render(session.error())));
      continue;
    }
    for (int64_t size : {1, 3, 17}) {
      auto inputs = inputs_of(model->graph, size, state);
      if (!inputs) continue;
      ++proof.instances;
      std::string problem = compare_case(model->graph, *session, context, *inputs);
      if (!problem.empty()) proof.wrong.push_back(fmt::format("{}: {}", test.name, problem));
    }
  }
  return proof;
}

}  // namespace ferrule
