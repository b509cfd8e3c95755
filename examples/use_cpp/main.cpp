// use_ferrule MODEL: runs a model on inputs of ones, shows its outputs and how many layers it has.
#include <cstdio>
#include <ferrule.hpp>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: use_ferrule MODEL\n");
    return 2;
  }
  try {
    ferrule::Session session(argv[1]);
    std::vector<std::vector<float>> memory;
    std::vector<ferrule::Tensor> inputs;
    for (const ferrule::Port& p : session.inputs()) {
      std::vector<int64_t> dims = p.dims;
      size_t count = 1;
      for (int64_t& d : dims) count *= static_cast<size_t>(d = d < 0 ? 1 : d);  // open sizes: 1
      memory.emplace_back(count, 1.0f);
      inputs.push_back(ferrule::tensor(p.name, dims, memory.back().data()));
    }
    const ferrule::Results results = session.run(inputs);
    for (size_t k = 0; k < results.size(); ++k) {
      std::printf("%s [", results[k].name().c_str());
      for (int64_t d : results[k].dims()) std::printf(" %lld", static_cast<long long>(d));
      std::printf(" ] begins with %g\n", results[k].data<float>()[0]);
    }
    std::printf("plan: %s\n", session.view(FERRULE_VIEW_PLAN, inputs).c_str());
  } catch (const ferrule::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code;
  }
}
