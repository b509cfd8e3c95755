// run: the model on given or random inputs, outputs to a file or in short.
#include <unistd.h>

#include <iostream>

#include "engine/base/join.h"
#include "engine/graph/npz.h"
#include "runtime/cli/tensors.h"

namespace ferrule::cli {
namespace {

std::string described(const Tensor& t) {
  if (!t.is_tensor())
    return t.elements().empty() ? std::string(name(t.dtype()))
                                : fmt::format("{} of {}, the first {}", name(t.dtype()),
                                              t.elements().size(), described(t.elements()[0]));
  return fmt::format("{}[{}]", name(t.dtype()), fmt::join(t.dims(), ","));
}

void print_outputs(const Session& session, const Tensors& outputs) {
  for (const Port& p : session.outputs()) {
    const Tensor& t = outputs.at(p.name);
    std::cout << escape(p.name) << " " << described(t);
    if (t.dtype() != DType::string && t.is_tensor()) {
      std::vector<double> values = t.to_f64();
      double low = 0, high = 0, sum = 0;
      for (size_t k = 0; k < values.size(); ++k) {
        low = k ? std::min(low, values[k]) : values[k];
        high = k ? std::max(high, values[k]) : values[k];
        sum += values[k];
      }
      if (!values.empty())
        std::cout << fmt::format("  min {:.6g}  max {:.6g}  mean {:.6g}", low, high,
                                 sum / static_cast<double>(values.size()));
    }
    std::cout << "\n";
  }
}

Result<Exit> body(const Common& common, const InputOptions& input, const std::string& output) {
  if (output.ends_with(".npy"))
    return error(Code::usage, "--outputs",
                 fmt::format("all outputs go into one .npz file, by name; {} is an array's",
                             escape(output)));
  FERRULE_TRY(free_place("--outputs", output, common.force));
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  FERRULE_ASSIGN(Session session, Session::load(common.model, options));
  std::vector<std::string> notes = session.notes();
  FERRULE_ASSIGN(Tensors inputs, gather_inputs(session.inputs(), input, options.engine.shapes,
                                               notes, accepted_by(session)));
  FERRULE_ASSIGN(Tensors outputs, session.run(inputs));
  Shapes shapes;
  for (const auto& [n, t] : inputs) shapes[n] = t.dims();
  FERRULE_ASSIGN(Compiled * prepared, session.compile(shapes));
  if (!output.empty()) FERRULE_TRY(write_npz(output, only_tensors(outputs, &notes), common.force));
  for (const std::string& n : notes) talk("note: " + n);
  int64_t launched = prepared->executable().launches();
  const std::vector<std::string> interpreted = interpreted_layers(*prepared);
  if (common.json) {
    nlohmann::json out = nlohmann::json::object();
    for (const auto& [n, t] : outputs)
      out[escape(n, 4096)] = {{"dtype", name(t.dtype())}, {"dims", t.dims()}};
    print_json({{"schema_version", kSchemaVersion},
                {"backend", prepared->backend()},
                {"device", prepared->device()},
                {"interpreted", interpreted},
                {"kernels_launched", launched},
                {"layers", prepared->plan().layers.size()},
                {"outputs", out},
                {"notes", notes}});
    return Exit::ok;
  }
  talk(fmt::format("ran on {}: {}, {} launched", ran_on(*prepared),
                   counted(prepared->plan().layers.size(), "layer"), counted(launched, "kernel")));
  if (!interpreted.empty()) talk(fmt::format("interpreted: {}", fmt::join(interpreted, ", ")));
  if (prepared->backend() == "null")
    std::cout << prepared->executable().text();
  else if (output.empty())
    print_outputs(session, outputs);
  else
    talk("wrote " + output);
  return Exit::ok;
}

}  // namespace

void add_run(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("run", "run a model");
  add_common(*c, common, true);
  add_timeout(*c, common);
  auto input = std::make_shared<InputOptions>();
  auto output = std::make_shared<std::string>();
  add_inputs(*c, *input);
  c->add_option("--outputs", *output, "the file for the results; without it a summary is printed")
      ->type_name("FILE.npz");
  c->footer(
      "Examples:\n  ferrule run model.onnx --inputs in.npz --outputs out.npz\n"
      "  ferrule run model.onnx --shapes x:1x3x192x256 --seed 7\n  ferrule run model.onnx --input "
      "x=x.npy --backend reference");
  set_body(*c, common, exit, [input, output](const Common& o) { return body(o, *input, *output); });
}

}  // namespace ferrule::cli
