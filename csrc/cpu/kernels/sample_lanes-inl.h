// What the blocks say of every lane: labels, weights and what is given for single samples (Task::sample_weight,
// Task::sample_log_prior), in the order of the blocks.
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
        labels_(arena.take<typename Simd<T>::Int>(lanes)),
        weight_(arena.take<T>(lanes)),
        share_(arena.take<T>(lanes)),
        log_prior_(task.sample_log_prior ? arena.take<T>(lanes * task.classes) : nullptr),
        lowest_(task.sample_log_prior ? arena.take<T>(lanes / ld) : nullptr) {}

  void fill(const Task& task, const Coefficients<T>& c, const Team& team) {
    run(team, (lanes_ + kPieceLanes - 1) / kPieceLanes, [&](int64_t piece) {
      const int64_t first = piece * kPieceLanes,
                    end = first + kPieceLanes < lanes_ ? first + kPieceLanes : lanes_;
      fill_lanes(task, c, first, end);
    });
    if (log_prior_) fill_priors(task, team);
  }
  // Block b of those that start at lane `first`.
  void bind(Block<T>& block, int64_t first) const {
    block.labels = labels_ + first;
    block.weight = weight_ + first;
    block.share = share_ + first;
    if (log_prior_) block.log_prior = log_prior_ + first / ld_ * classes_ * ld_ + first % ld_;
  }
  // max |log prior_ik|
  T prior_range() const {
    T lowest = T(0);
    for (int64_t part = 0; log_prior_ && part < lanes_ / ld_; ++part)
      lowest = lowest_[part] < lowest ? lowest_[part] : lowest;
    return -lowest;
  }

 private:
  static constexpr int64_t kPieceLanes = 8192;  // that one thread fills

  void fill_lanes(const Task& task, const Coefficients<T>& c, int64_t first, int64_t end) {
    const T* const weight = static_cast<const T*>(task.sample_weight);
    const int64_t N = task.samples();
    int64_t i = first;
    for (; i < end && i < task.support; ++i) {
      labels_[i] = task.labels[i];
      weight_[i] = c.support;
      share_[i] = T(0);
    }
    for (; i < end && i < N; ++i) {
      labels_[i] = task.labels[i];
      share_[i] = weight ? T(double(weight[task.position[i]]) * task.weight_scale) : T(1);
      weight_[i] = share_[i] * c.query;
    }
    for (; i < end; ++i) {
      labels_[i] = int32_t(kPadding);
      weight_[i] = share_[i] = T(0);
    }
  }
  void fill_priors(const Task& task, const Team& team) {
    const T* const log_prior = static_cast<const T*>(task.sample_log_prior);
    run(team, lanes_ / ld_, [&](int64_t part) {
      T* const out = log_prior_ + part * classes_ * ld_;
      T lowest = T(0);
      for (int64_t l = 0; l < ld_; ++l) {
        const int64_t i = part * ld_ + l;
        const bool is_query = i >= task.support && i < task.samples();
        const T* row = is_query ? log_prior + task.position[i] * classes_ : nullptr;
        for (int64_t k = 0; k < classes_; ++k) {
          const T value = row ? row[k] * T(kLog2e) : T(0);
          out[k * ld_ + l] = value;
          lowest = value < lowest ? value : lowest;
        }
      }
      lowest_[part] = lowest;
    });
  }

  int64_t classes_, lanes_, ld_;
  typename Simd<T>::Int* labels_;
  T *weight_, *share_, *log_prior_, *lowest_;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
