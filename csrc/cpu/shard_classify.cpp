// shard_classify on the CPU: p of rows at given weights.
#include "cpu/shard_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> shard_classify_cpu(const Tensor& features,  // [n, d]
                                                              const Tensor& labels,    // [n]
                                                              const Tensor& scale,     // [n]
                                                              const Tensor& weights,   // [K, d]
                                                              double temperature, bool probs,
                                                              const std::optional<Tensor>& mean) {  // [d]
  ShardPart part("shard_classify", features, labels, weights.size(0));
  const ScalarType real = part.real();
  check_tensor(part.op, "weights", weights, real, {-1, features.size(1)});
  part.check_scale(scale);
  const int64_t n = part.samples();
  Tensor p = new_tensor(features, {probs ? n : 0, weights.size(0)}, real);
  Tensor predictions = new_tensor(features, {n}, ScalarType::Long);
  Tensor confidences = new_tensor(features, {n}, real);
  Tensor status = new_tensor(features, {3}, ScalarType::Long);
  ShardParams params;
  params.temperature = temperature;
  ShardClassify<void> arrays;
  arrays.scale = scale.const_data_ptr();
  arrays.mean = part.mean_of(mean);
  arrays.weights = weights.const_data_ptr();
  arrays.probs = probs ? p.mutable_data_ptr() : nullptr;
  arrays.predictions = predictions.mutable_data_ptr<int64_t>();
  arrays.confidences = confidences.mutable_data_ptr();
  shard_classify(part.batch, params, arrays, part.status, torch_team());
  part.check_labels();
  for (int64_t i = 0; i < 3; ++i) status.mutable_data_ptr<int64_t>()[i] = part.status[i];
  return {p, predictions, confidences, status};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("shard_classify", TORCH_BOX(&tim_ext::shard_classify_cpu));
}
