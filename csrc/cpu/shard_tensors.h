// What the operators on a part of a task share: tensors to a Batch of that one part.
#pragma once

#include "common/tensors.h"
#include "cpu/core/core.h"
#include "cpu/team.h"

namespace tim_ext {

struct ShardPart {
  Batch batch;
  int64_t offsets[2], classes[1];
  int64_t status[3] = {0, 0, 0};
  const char* op;

  ShardPart(const char* name, const Tensor& features, const Tensor& labels, int64_t count) : op(name) {
    check_tensor(op, "features", features, features.scalar_type(), {-1, -1});
    check_tensor(op, "labels", labels, ScalarType::Long, {features.size(0)});
    STD_TORCH_CHECK(features.size(1) > 0, op, ": features must have at least one column");
    STD_TORCH_CHECK(count >= 1, op, ": the number of classes must be >= 1, got ", count);
    offsets[0] = 0;
    offsets[1] = features.size(0);
    classes[0] = count;
    batch.dtype = dtype_of(op, features);
    batch.features = features.const_data_ptr();
    batch.pool_rows = features.size(0);
    batch.dim = features.size(1);
    batch.labels = labels.const_data_ptr<int64_t>();
    batch.offsets = offsets;
    batch.classes = classes;
    batch.tasks = 1;
  }
  ShardPart(const ShardPart&) = delete;
  int64_t samples() const { return offsets[1]; }
  ScalarType real() const { return real_type(batch.dtype); }
  void check_scale(const Tensor& scale) const { check_tensor(op, "scale", scale, real(), {samples()}); }
  // [dim] or null
  const void* mean_of(const std::optional<Tensor>& mean) const {
    if (!mean) return nullptr;
    check_tensor(op, "mean", *mean, real(), {batch.dim});
    return mean->const_data_ptr();
  }
  // log p or p, in the blocks of kernels/passes-inl.h.
  void check_kept(const char* name, const Tensor& kept) const {
    int64_t size = 0;
    STD_TORCH_CHECK(multiply(shard_lanes(samples()), classes[0], &size), op, ": ", samples(), " samples of ",
                    classes[0], " classes are too many");
    check_tensor(op, name, kept, real(), {size});
  }
  void check_labels() const {
    STD_TORCH_CHECK(status[0] != int64_t(Status::label_out_of_range), op, ": labels must be below ",
                    classes[0], ", -1 or -100, got ", status[2], " at sample ", status[1]);
  }
};

// The weighted half of TIM-ADM or TIM-GD: sums [K, d] and totals [K].
inline std::tuple<Tensor, Tensor> shard_sums_operator(const char* op, const ShardParams& params,
                                                      const Tensor& features,   // [n, d]
                                                      const Tensor& labels,     // [n]
                                                      const Tensor& scale,      // [n]
                                                      const Tensor& log_probs,  // [lanes * K]
                                                      const char* factor_name,
                                                      const Tensor& factor,                 // [K]
                                                      const std::optional<Tensor>& mean) {  // [d]
  ShardPart part(op, features, labels, factor.size(0));
  check_tensor(op, factor_name, factor, part.real(), {-1});
  part.check_scale(scale);
  part.check_kept("log_probs", log_probs);
  Tensor sums = new_tensor(features, {factor.size(0), features.size(1)}, ScalarType::Double);
  Tensor totals = new_tensor(features, {factor.size(0)}, ScalarType::Double);
  ShardSums<void> arrays;
  arrays.scale = scale.const_data_ptr();
  arrays.mean = part.mean_of(mean);
  arrays.log_probs = log_probs.mutable_data_ptr();
  arrays.factor = factor.const_data_ptr();
  arrays.sums = sums.mutable_data_ptr<double>();
  arrays.totals = totals.mutable_data_ptr<double>();
  shard_sums(part.batch, params, arrays, part.status, torch_team());
  part.check_labels();
  return {sums, totals};
}

}  // namespace tim_ext
