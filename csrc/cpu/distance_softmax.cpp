// distance_softmax on the CPU: p_ik = softmax_k(-tau/2 ||w_k - z_i||^2) and its logarithm.
#include "cpu/step_pieces.h"

namespace tim_ext {
namespace {

struct Cpu {
  static constexpr bool kTakesLayouts = true;

  template <class T>
  static void run(const Laid<DistanceSoftmax<T>>& step, const Tensor&) {
    const int64_t rows = step.shape.samples;
    for_step_pieces<T>(
        step.shape, (rows + kStepRows - 1) / kStepRows, [&](int64_t task, int64_t piece, void* work) {
          const int64_t first = piece * kStepRows;
          kernels<T>().distance_softmax(step, task, first, std::min(kStepRows, rows - first), work);
        });
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("distance_softmax", TORCH_BOX(&tim_ext::DistanceSoftmaxOperator<tim_ext::Cpu>::make));
  m.impl("distance_softmax.out", TORCH_BOX(&tim_ext::DistanceSoftmaxOperator<tim_ext::Cpu>::fill));
}
