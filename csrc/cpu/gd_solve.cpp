// gd_solve on the CPU; the work is in core/gd.cpp.
#include "common/solve_operators.h"
#include "cpu/core/core.h"
#include "cpu/team.h"

namespace tim_ext {
namespace {

void solve(const Batch& batch, const GdParams& params, const Outputs& outputs, const Tensor&) {
  Interrupt interrupt("gd_solve");
  gd_solve(batch, params, outputs, asking(interrupt, torch_team()));
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CPU, m) {
  m.impl("gd_solve", TORCH_BOX(&tim_ext::gd_solve_operator<tim_ext::solve>));
}
