// What the operators on a part of a task share: tensors to a Batch of that one part.
#pragma once

#include "common/solve_tensors.h"
#include "cpu/core/core.h"
#include "cpu/team.h"

namespace tim_ext {

inline ScalarType real_type(const Batch& part) {
  return part.dtype == Dtype::f64 ? ScalarType::Double : ScalarType::Float;
}

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
    batch = {dtype_of(op, features),
             features.const_data_ptr(),
             features.size(0),
             features.size(1),
             nullptr,
             labels.const_data_ptr<int64_t>(),
             offsets,
             classes,
             nullptr,
             1};
  }
  ShardPart(const ShardPart&) = delete;
  int64_t samples() const { return offsets[1]; }
  void check_scale(const Tensor& scale) const {
    check_tensor(op, "scale", scale, real_type(batch), {samples()});
  }
  // log p or p, in the blocks of core/primal.h.
  void check_kept(const char* name, const Tensor& kept) const {
    check_tensor(op, name, kept, real_type(batch), {shard_lanes(samples()) * classes[0]});
  }
  void check_labels() const {
    STD_TORCH_CHECK(status[0] != int64_t(Status::label_out_of_range), op, ": labels must be below ",
                    classes[0], ", -1 or -100, got ", status[2], " at sample ", status[1]);
  }
};

}  // namespace tim_ext
