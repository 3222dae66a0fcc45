// TIM-ADM in the primal form: w_k <- (A_k + B_k w_k) / D_k.
#pragma once

#include "cpu/kernels/passes-inl.h"
#include "cpu/kernels/prelude.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class PrimalAdm : public PrimalPasses<T> {
 public:
  PrimalAdm(const Task& task, const AdmParams& params, const T* scale, const Team& team, Arena& arena)
      : PrimalPasses<T>(task, coefficients<T>(params, task), params.tol > 0, true, scale, team, arena) {}

  template <int KT, From from>
  void q_step() {
    ClassState<T>& s = this->state;
    this->template q_pass<KT, from>();
    combine_q(this->task_, this->c_, s, this->blocks);
    this->update_weights([&](int64_t k, int64_t, Vec<T> w, Vec<T> sum)
                             TIM_LAMBDA_INLINE { return sum * s.step[k] + w * s.stay[k]; });
  }
};

template <class T>
void primal_solve(const Task& task, const AdmParams& params, const T* scale, const TaskOutputs<T>& out,
                  const Team& team, void* work) {
  Arena arena(work);
  PrimalAdm<T> form(task, params, scale, team, arena);
  form.prepare(task.weights);
  *out.iterations = iterate<0>(form, task, params, form.coefs(), form.state, out);
  form.finish(out);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
