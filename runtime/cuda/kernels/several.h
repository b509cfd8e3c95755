// Kernels that stand for one step: a convolution and its tail apart.
#pragma once
#include <algorithm>
#include <vector>

#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

class Several final : public Kernel {
 public:
  explicit Several(std::vector<KernelPtr> kernels) : kernels_(std::move(kernels)) {}
  int64_t scratch_bytes() const override {
    int64_t most = 0;
    for (const KernelPtr& k : kernels_) most = std::max(most, k->scratch_bytes());
    return most;
  }
  Status bind(Binder& binder) override {
    for (const KernelPtr& k : kernels_)
      if (Status s = k->bind(binder); !s) return s;
    return {};
  }
  Status enqueue(Stream stream) override {
    for (const KernelPtr& k : kernels_) {
      const int64_t before = k->launched();
      if (Status s = k->enqueue(stream); !s) return s;
      for (int64_t n = before; n < k->launched(); ++n) (void)counted({});
    }
    return {};
  }
  Status finish() override {
    Status first;
    for (const KernelPtr& k : kernels_)
      if (Status s = k->finish(); !s && first) first = std::move(s);
    return first;
  }
  bool of_library() const override {
    return std::ranges::any_of(kernels_, [](const KernelPtr& k) { return k->of_library(); });
  }
  std::string text() const override {
    std::string out;
    for (const KernelPtr& k : kernels_) out += (out.empty() ? "" : " + ") + k->text();
    return out;
  }

 private:
  std::vector<KernelPtr> kernels_;
};

}  // namespace ferrule::cuda
