// shard_adm_sums on the CPU: what a part of a task adds to the next weights of TIM-ADM.
#include "cpu/shard_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> shard_adm_sums_cpu(const Tensor& features, const Tensor& labels,
                                              const Tensor& scale, const Tensor& log_probs,
                                              const Tensor& factor, double support_weight,
                                              double query_weight, double power, bool exact,
                                              const std::optional<Tensor>& mean) {
  ShardParams p;
  p.method = Method::adm;
  p.support_weight = support_weight;
  p.query_weight = query_weight;
  p.power = power;
  p.exact = exact;
  return shard_sums_operator("shard_adm_sums", p, features, labels, scale, log_probs, "factor", factor, mean);
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("shard_adm_sums", TORCH_BOX(&tim_ext::shard_adm_sums_cpu));
}
