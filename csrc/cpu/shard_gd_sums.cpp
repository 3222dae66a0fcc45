// shard_gd_sums on the CPU: what a part of a task adds to the gradient of TIM.
#include "cpu/shard_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> shard_gd_sums_cpu(const Tensor& features,   // [n, d]
                                             const Tensor& labels,     // [n]
                                             const Tensor& scale,      // [n]
                                             const Tensor& log_probs,  // [lanes * K]
                                             const Tensor& marginal,   // [K]
                                             double support_weight, double query_weight, double alpha,
                                             double entropy_order) {
  ShardPart part("shard_gd_sums", features, labels, marginal.size(0));
  check_tensor(part.op, "marginal", marginal, real_type(part.batch), {-1});
  part.check_scale(scale);
  part.check_kept("log_probs", log_probs);
  Tensor sums = new_tensor(features, {marginal.size(0), features.size(1)}, ScalarType::Double);
  Tensor totals = new_tensor(features, {marginal.size(0)}, ScalarType::Double);
  shard_gd_sums(part.batch, {1, support_weight, query_weight, 1, alpha, entropy_order, false, false},
                scale.const_data_ptr(), marginal.const_data_ptr(), log_probs.const_data_ptr(),
                sums.mutable_data_ptr<double>(), totals.mutable_data_ptr<double>(), part.status,
                torch_team());
  part.check_labels();
  return {sums, totals};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("shard_gd_sums", TORCH_BOX(&tim_ext::shard_gd_sums_cpu));
}
