// shard_softmax on the CPU: log p of a part of a task, and the sums that the other half of the iteration needs.
#include "cpu/shard_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> shard_softmax_cpu(const Tensor& features,               // [n, d]
                                             const Tensor& labels,                 // [n]
                                             const Tensor& scale,                  // [n]
                                             const Tensor& weights,                // [K, d]
                                             const Tensor& log_probs,              // [lanes * K]
                                             const std::optional<Tensor>& before,  // [lanes * K]
                                             double temperature, double support_weight, double query_weight,
                                             double power, double entropy_order, bool terms,
                                             const std::optional<Tensor>& mean) {  // [d]
  ShardPart part("shard_softmax", features, labels, weights.size(0));
  check_tensor(part.op, "weights", weights, part.real(), {-1, features.size(1)});
  part.check_scale(scale);
  part.check_kept("log_probs", log_probs);
  if (before) part.check_kept("before", *before);
  Tensor columns = new_tensor(features, {3, weights.size(0)}, ScalarType::Double);
  Tensor scalars = new_tensor(features, {4}, ScalarType::Double);
  ShardParams p;
  p.temperature = temperature;
  p.support_weight = support_weight;
  p.query_weight = query_weight;
  p.power = power;
  p.entropy_order = entropy_order;
  p.terms = terms;
  ShardSoftmax<void> arrays;
  arrays.scale = scale.const_data_ptr();
  arrays.mean = part.mean_of(mean);
  arrays.weights = weights.const_data_ptr();
  arrays.log_probs = log_probs.mutable_data_ptr();
  arrays.before = before ? before->mutable_data_ptr() : nullptr;
  arrays.columns = columns.mutable_data_ptr<double>();
  arrays.scalars = scalars.mutable_data_ptr<double>();
  shard_softmax(part.batch, p, arrays, part.status, torch_team());
  part.check_labels();
  return {columns, scalars};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("shard_softmax", TORCH_BOX(&tim_ext::shard_softmax_cpu));
}
