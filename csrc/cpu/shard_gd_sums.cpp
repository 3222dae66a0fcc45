// shard_gd_sums on the CPU: what a part of a task adds to the gradient of TIM.
#include "cpu/shard_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> shard_gd_sums_cpu(const Tensor& features, const Tensor& labels,
                                             const Tensor& scale, const Tensor& log_probs,
                                             const Tensor& marginal, double support_weight,
                                             double query_weight, double alpha, double entropy_order,
                                             const std::optional<Tensor>& mean) {
  ShardParams p;
  p.method = Method::gd;
  p.support_weight = support_weight;
  p.query_weight = query_weight;
  p.alpha = alpha;
  p.entropy_order = entropy_order;
  return shard_sums_operator("shard_gd_sums", p, features, labels, scale, log_probs, "marginal", marginal,
                             mean);
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("shard_gd_sums", TORCH_BOX(&tim_ext::shard_gd_sums_cpu));
}
