// What is given for single samples (Task::sample_weight, Task::sample_log_prior) in the order of the blocks.
#pragma once

#include "cpu/kernels/blocks-inl.h"
#include "cpu/kernels/prelude.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class SampleLanes {
 public:
  // lanes: of all samples; ld: of a row of the class-major arrays, [lanes / ld][K][ld]
  SampleLanes(const Task& task, int64_t lanes, int64_t ld, Arena& arena)
      : classes_(task.classes),
        lanes_(lanes),
        ld_(ld),
        weight_(task.sample_weight ? arena.take<T>(lanes) : nullptr),
        log_prior_(task.sample_log_prior ? arena.take<T>(lanes * task.classes) : nullptr),
        lowest_(task.sample_log_prior ? arena.take<T>(lanes / ld) : nullptr) {}

  void fill(const Task& task, const Team& team) {
    const T* const weight = static_cast<const T*>(task.sample_weight);
    const T* const log_prior = static_cast<const T*>(task.sample_log_prior);
    auto is_query = [&](int64_t i) { return i >= task.support && i < task.samples(); };
    for (int64_t i = 0; weight_ && i < lanes_; ++i)
      weight_[i] = is_query(i) ? T(double(weight[task.position[i]]) * task.weight_scale) : T(0);
    if (!log_prior_) return;
    run(team, lanes_ / ld_, [&](int64_t part) {
      T* const out = log_prior_ + part * classes_ * ld_;
      T lowest = T(0);
      for (int64_t l = 0; l < ld_; ++l) {
        const int64_t i = part * ld_ + l;
        const T* row = is_query(i) ? log_prior + task.position[i] * classes_ : nullptr;
        for (int64_t k = 0; k < classes_; ++k) {
          const T value = row ? row[k] * T(kLog2e) : T(0);
          out[k * ld_ + l] = value;
          lowest = value < lowest ? value : lowest;
        }
      }
      lowest_[part] = lowest;
    });
  }
  // Block b of those that start at lane `first`.
  void bind(Block<T>& block, int64_t first) const {
    if (weight_) block.weight = weight_ + first;
    if (log_prior_) block.log_prior = log_prior_ + first / ld_ * classes_ * ld_ + first % ld_;
  }
  // The lowest log prior_ik.
  T lowest() const {
    T lowest = T(0);
    for (int64_t part = 0; log_prior_ && part < lanes_ / ld_; ++part)
      lowest = lowest_[part] < lowest ? lowest_[part] : lowest;
    return lowest;
  }

 private:
  int64_t classes_, lanes_, ld_;
  T *weight_, *log_prior_, *lowest_;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
