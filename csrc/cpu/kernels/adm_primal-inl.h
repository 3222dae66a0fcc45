// TIM-ADM in the primal form: w_k <- (A_k + B_k w_k) / D_k. A task that chooses its steps (StepControl) has the residual
// R = F(W) - W there instead, and W moves along it.
#pragma once

#include "cpu/kernels/passes-inl.h"
#include "cpu/kernels/prelude.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class PrimalAdm : public PrimalPasses<T> {
 public:
  PrimalAdm(const Task& task, const AdmParams& params, const T* scale, const Team& team, Arena& arena)
      : PrimalPasses<T>(task, coefficients<T>(params, task), params.tol > 0, true, scale, team, arena) {
    if (!params.chooses_steps) return;
    steps_.emplace(params.iterations, task.samples(), params.decides_marginal);
    residual_ = arena.take<T>(task.classes * this->pitch_);
    residual_before_ = arena.take<T>(task.classes * this->pitch_);
    inner_parts_ = arena.take<T>(this->pieces_ * 2);
  }

  template <int KT, From from, bool known>
  void q_step() {
    ClassState<T>& s = this->state;
    this->template q_pass<KT, from, known>();
    combine_q(this->task_, this->c_, s, this->blocks);
    if (steps_) return move();
    this->update_weights([&](int64_t k, int64_t, Vec<T> w, Vec<T> sum)
                             TIM_LAMBDA_INLINE { return sum * s.step[k] + w * s.stay[k]; });
  }

 private:
  static constexpr int W = kWidth<T>;

  void move() {
    run(this->team_, this->pieces_, [&](int64_t piece) { gather_residual(piece); });
    double own = 0, mixed = 0;
    for (int64_t piece = 0; piece < this->pieces_; ++piece) {
      own += double(inner_parts_[2 * piece]);
      mixed += double(inner_parts_[2 * piece + 1]);
    }
    const StepMove step = steps_->move(own, mixed);
    if (!step.refused) exchange(residual_, residual_before_);
    const T* const along = residual_before_;
    const T factor = T(step.factor);
    this->template update_weights<false>([=](int64_t, int64_t at, Vec<T> w, Vec<T>)
                                             TIM_LAMBDA_INLINE { return w + load(along + at) * factor; });
  }

  // R of a piece of columns, and its parts of <R, R> and <R_before, R>.
  void gather_residual(int64_t piece) {
    const int64_t K = this->task_.classes, pitch = this->pitch_, first = piece * this->kPieceColumns,
                  end = first + this->kPieceColumns < pitch ? first + this->kPieceColumns : pitch;
    Vec<T>* const sums = this->column_ + piece * 2 * K;
    Vec<T> own = Vec<T>{}, mixed = Vec<T>{};
    for (int64_t j = first; j < end; j += W) {
      this->gather_sums(j, sums);
      Vec<T> sum = Vec<T>{}, sum_before = Vec<T>{};
      for (int64_t k = 0; k < K; ++k) {
        const Vec<T> r =
            sums[k] * this->state.step[k] + load(this->weights_ + k * pitch + j) * this->state.stay[k];
        const Vec<T> before = steps_->next > 0 ? load(residual_before_ + k * pitch + j) : Vec<T>{};
        store(residual_ + k * pitch + j, r);
        own += r * r;
        mixed += before * r;
        sum += r;
        sum_before += before;
      }
      own -= sum * sum * (T(1) / T(K));
      mixed -= sum_before * sum * (T(1) / T(K));
    }
    inner_parts_[2 * piece] = reduce_add<T>(own);
    inner_parts_[2 * piece + 1] = reduce_add<T>(mixed);
  }

  std::optional<StepControl> steps_;
  T *residual_ = nullptr, *residual_before_ = nullptr;  // [K][pitch]; W moves along the second
  T* inner_parts_ = nullptr;                            // [pieces][2]
};

template <class T>
void primal_solve(const Task& task, const AdmParams& params, const T* scale, const TaskOutputs<T>& out,
                  const Team& team, void* work) {
  Arena arena(work);
  PrimalAdm<T> form(task, params, scale, team, arena);
  form.prepare(task.weights);
  *out.iterations = task.sample_log_prior
                        ? iterate<0, true>(form, task, params, form.coefs(), form.state, out)
                        : iterate<0, false>(form, task, params, form.coefs(), form.state, out);
  form.finish(out);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
