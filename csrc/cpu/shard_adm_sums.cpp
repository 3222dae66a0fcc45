// shard_adm_sums on the CPU: what a part of a task adds to the next weights of TIM-ADM.
#include "cpu/shard_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> shard_adm_sums_cpu(const Tensor& features,   // [n, d]
                                              const Tensor& labels,     // [n]
                                              const Tensor& scale,      // [n]
                                              const Tensor& log_probs,  // [lanes * K]
                                              const Tensor& factor,     // [K]
                                              double support_weight, double query_weight, double power,
                                              bool exact) {
  ShardPart part("shard_adm_sums", features, labels, factor.size(0));
  check_tensor(part.op, "factor", factor, real_type(part.batch), {-1});
  part.check_scale(scale);
  part.check_kept("log_probs", log_probs);
  Tensor sums = new_tensor(features, {factor.size(0), features.size(1)}, ScalarType::Double);
  Tensor totals = new_tensor(features, {factor.size(0)}, ScalarType::Double);
  shard_adm_sums(part.batch, {1, support_weight, query_weight, power, 0, 1, false, exact},
                 scale.const_data_ptr(), factor.const_data_ptr(), log_probs.const_data_ptr(),
                 sums.mutable_data_ptr<double>(), totals.mutable_data_ptr<double>(), part.status,
                 torch_team());
  part.check_labels();
  return {sums, totals};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("shard_adm_sums", TORCH_BOX(&tim_ext::shard_adm_sums_cpu));
}
