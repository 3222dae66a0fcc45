// adm_solve on CUDA; the work is in core/adm.cu.
#include "common/solve_operators.h"
#include "cuda/device.h"

namespace tim_ext {
namespace {

void solve(const Batch& batch, const AdmParams& params, const Outputs& outputs, const Tensor& features) {
  STD_TORCH_CHECK(!params.roots, "adm_solve: roots must be False on CUDA: take them beforehand");
  const OnDeviceOf here(features);
  const Paced paced("adm_solve", here, batch.dtype);
  const Tensor workspace = new_workspace(features, cuda::adm_workspace(batch, params, paced.device()));
  cuda::adm_solve(batch, params, outputs, workspace.mutable_data_ptr(), paced.device(), here.stream());
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CUDA, m) {
  m.impl("adm_solve", TORCH_BOX(&tim_ext::adm_solve_operator<tim_ext::solve>));
}
