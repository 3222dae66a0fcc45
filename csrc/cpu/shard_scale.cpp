// shard_scale on the CPU: the lengths of the rows of a part of a task.
#include "cpu/shard_tensors.h"

namespace tim_ext {
namespace {

std::tuple<Tensor, Tensor> shard_scale_cpu(const Tensor& features,  // [n, d]
                                           const Tensor& labels,    // [n]
                                           bool normalize) {
  ShardPart part("shard_scale", features, labels, 1);
  // Which class it is does not matter here, and how many there are is not known yet.
  std::vector<int64_t> marks(part.batch.labels, part.batch.labels + part.samples());
  for (int64_t& mark : marks) mark = mark > 0 ? 0 : mark;
  part.batch.labels = marks.data();
  Tensor scale = new_tensor(features, {part.samples()}, part.real());
  Tensor status = new_tensor(labels, {3}, ScalarType::Long);
  bool extreme;
  shard_scale(part.batch, normalize, scale.mutable_data_ptr(), &extreme, part.status, torch_team());
  int64_t* out = status.mutable_data_ptr<int64_t>();
  out[0] = part.status[0];
  out[1] = part.status[1];
  out[2] = part.status[0] ? part.status[2] : int64_t(extreme);
  return {scale, status};
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) { m.impl("shard_scale", TORCH_BOX(&tim_ext::shard_scale_cpu)); }
