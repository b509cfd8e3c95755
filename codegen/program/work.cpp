#include "codegen/program/work.h"

#include <algorithm>

#include "engine/semantics/movement.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {
namespace {

struct ContractWork {
  std::string_view contract;
  Work work;
};
constexpr ContractWork kWorks[] = {
    {"attention", Work::attention},
    {"conv", Work::convolution},
    {"conv_pool", Work::window_chain},
    {"deconv", Work::deconvolution},
    {"depthwise_pointwise", Work::window_chain},
    {"gemm", Work::product},
    {"gru", Work::gru},
    {"lstm", Work::lstm},
    {"norm", Work::norm},
    {"pool", Work::average_pool},
    {"resize", Work::resize},
    {"rnn", Work::rnn},
    {"softmax_topk", Work::softmax_topk},
};

Work pooling_work(Pooling p) {
  if (p.global) return p.maximum ? Work::global_max_pool : Work::global_average_pool;
  return p.maximum ? Work::max_pool : Work::average_pool;
}

Work copy_work(const Node& n) {
  if (!is_movement(n)) return n.body ? Work::other : Work::reorder;
  return is_transpose(n) ? Work::transpose : looks_up(n) ? Work::gather : Work::other;
}

}  // namespace

Work work_of(std::string_view contract, const Node& n) {
  if (contract == "copy") return copy_work(n);
  const auto row = std::ranges::find(kWorks, contract, &ContractWork::contract);
  if (row == std::end(kWorks)) return Work::other;
  if (const auto pooling = pooling_of(n); pooling && row->work == Work::average_pool)
    return pooling_work(*pooling);
  const Weighted* w = weighted(n);
  return w && w->affine && row->work == Work::product ? Work::affine_product : row->work;
}

}  // namespace ferrule
