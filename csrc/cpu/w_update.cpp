// w_update on the CPU: the next weights of TIM-ADM from p and the assignments.
#include "cpu/step_pieces.h"

namespace tim_ext {
namespace {

struct Cpu {
  template <class T>
  static void run(const WUpdate<T>& step, const Tensor&) {
    constexpr int64_t kColumns = 192;  // of W, per piece
    const int64_t columns = step.shape.dim;
    for_pieces<T>(step.shape, pieces_of(columns, kColumns), [&](int64_t task, int64_t piece, void* work) {
      const int64_t first = piece * kColumns;
      kernels<T>().w_update(step, task, first, std::min(kColumns, columns - first), work);
    });
  }
};

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("w_update", TORCH_BOX(&tim_ext::w_update_operator<tim_ext::Cpu>));
}
