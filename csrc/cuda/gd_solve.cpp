// gd_solve on CUDA; the work is in core/gd.cu.
#include "common/solve_operators.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

void solve(const Batch& batch, const GdParams& params, const Outputs& outputs, const Tensor& features) {
  const OnDeviceOf here(features);
  const Paced paced("gd_solve", here, batch.dtype);
  const Tensor workspace = new_workspace(features, cuda::gd_workspace(batch, params, paced.device()));
  cuda::gd_solve(batch, params, outputs, workspace.mutable_data_ptr(), paced.device(), here.stream());
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) {
  m.impl("gd_solve", TORCH_BOX(&tim_ext::gd_solve_operator<tim_ext::solve>));
}
