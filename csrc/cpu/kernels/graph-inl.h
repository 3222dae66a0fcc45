// Smoothing over the neighbour graph on the features themselves, for the primal form and for tasks whose Gram matrix is
// large; equations.h has the equations, smoothing-inl.h the same in the Gram domain.
//
//   neighbours   exact, from all cosines: N^2 d multiply-adds, a tile of them at a time
//   y = (I - r S)^-1 c,  c_i = z_i - mean   by Chebyshev's iteration, a few columns of the features at a time
// Neither depends on the number of threads. Memory: the smoothed copy, and some 300 bytes per sample.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/smoothing-inl.h"
#include "cpu/kernels/tiles-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

template <class T>
class GraphSmoothing {
 public:
  static constexpr int W = kWidth<T>;
  static constexpr int64_t kPanel = kTileVectors * W;  // samples
  static constexpr int64_t kChunk = 256;               // features per step of a tile of cosines

  GraphSmoothing(const Task& task, const T* scale, const Team& team, Arena& arena)
      : task_(task), scale_(scale), team_(team), N_(task.samples()), d_(task.dim) {
    neighbour_ = arena.take<int32_t>(N_ * kMostNeighbours);
    weight_ = arena.take<T>(N_ * kMostNeighbours);
    found_ = arena.take<int32_t>(N_);
    start_ = arena.take<int64_t>(N_ + 1);
    column_ = arena.take<int32_t>(2 * N_ * kMostNeighbours);
    value_ = arena.take<T>(2 * N_ * kMostNeighbours);
    length_ = arena.take<T>(round_up(N_, kPanel));
    for (double** array : {&degree_, &sum_, &unit_}) *array = arena.take<double>(N_);
    // The columns that are smoothed at a time: three arrays of them that a cache holds, if there are few samples.
    columns_ = W;
    while (columns_ < 64 && 6 * columns_ * N_ * int64_t(sizeof(T)) <= (4 << 20)) columns_ *= 2;
    slots_ = team.threads;
    slot_size_ = 3 * N_ * columns_;
    slot_ = arena.take<T>(slots_ * slot_size_);
  }
  // Elements of `out` below, more than N d: whole panels are needed in between.
  static int64_t out_size(const Task& task) { return round_up(task.samples(), kPanel) * task.dim; }

  // out [N, dim] = z'_i - shift, shift [dim] a multiple of the mean.
  void smooth(double reach, T* out, T* shift) {
    pack(out);
    run(team_, panels(), [&](int64_t panel) { neighbours(panel, out); });
    graph(reach);
    const int64_t steps = chebyshev_steps<T>(reach);
    ones(reach, steps);
    int64_t next = 0;
    run(team_, slots_, [&](int64_t slot) {
      for (int64_t c; (c = __atomic_fetch_add(&next, columns_, __ATOMIC_RELAXED)) < d_;) {
        pause(team_);
        smooth_columns(reach, steps, c, c + columns_ < d_ ? columns_ : d_ - c, slot_ + slot * slot_size_,
                       out);
      }
    });
    rescale(out, shift);
  }

 private:
  int64_t panels() const { return (N_ + kPanel - 1) / kPanel; }

  // z_i - mean in panels [panel][column][sample], and 1 / their lengths.
  void pack(T* packed) {
    run(team_, panels(), [&](int64_t panel) {
      T* const to = packed + panel * kPanel * d_;
      pack_panel(task_, scale_, panel * kPanel, kPanel, 0, d_, to);
      for (int v = 0; v < kTileVectors; ++v) {
        Vec<T> square = Vec<T>{};
        for (int64_t c = 0; c < d_; ++c) {
          const Vec<T> x = load(to + c * kPanel + v * W);
          square += x * x;
        }
        Vec<T> inverse;
        for (int l = 0; l < W; ++l)
          inverse[l] = square[l] > Range<T>::tiny ? T(1) / __builtin_sqrt(square[l]) : T(0);
        store(length_ + panel * kPanel + v * W, inverse);
      }
    });
  }

  // The nearest of the samples of a panel, from tiles of cosines with every panel.
  void neighbours(int64_t panel, const T* packed) {
    const int64_t k = neighbours_of(N_, task_.classes), i0 = panel * kPanel;
    const int64_t rows = N_ - i0 < kPanel ? N_ - i0 : kPanel;
    std::optional<Nearest<T>> nearest[kPanel];
    for (int64_t r = 0; r < rows; ++r) nearest[r].emplace(k, task_.position);
    alignas(64) T tile[kPanel * kPanel];
    for (int64_t other = 0; other < panels(); ++other) {
      if (other % 64 == 0) pause(team_);
      products(packed + panel * kPanel * d_, packed + other * kPanel * d_, rows, tile);
      const int64_t j0 = other * kPanel;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < kPanel; j += W) {
          const Vec<T> values = load(tile + r * kPanel + j) * load(length_ + j0 + j);
          if (!(reduce_max<T>(values) >= nearest[r]->limit())) continue;
          for (int64_t l = 0; l < W; ++l)
            if (values[l] > T(0) && values[l] >= nearest[r]->limit() && j0 + j + l != i0 + r)
              nearest[r]->offer(values[l], j0 + j + l);
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (i0 + r) * kMostNeighbours;
      found_[i0 + r] = int32_t(nearest[r]->count);
      for (int64_t n = 0; n < nearest[r]->count; ++n) {
        const T cosine = nearest[r]->value[n] * length_[i0 + r];
        neighbour_[at + n] = int32_t(nearest[r]->sample[n]);
        weight_[at + n] = cosine * cosine * cosine;
      }
    }
  }

  // tile[r][j] = x_r . x_j of two packed panels.
  void products(const T* mine, const T* others, int64_t rows, T* tile) {
    for (int64_t c0 = 0; c0 < d_; c0 += kChunk) {
      const int64_t columns = d_ - c0 < kChunk ? d_ - c0 : kChunk;
      for_row_tiles(rows, [&](int64_t r0, auto nr) {
        constexpr int NR = decltype(nr)::value;
        Vec<T> acc[NR][kTileVectors] = {};
        multiply_tile<T, NR, kTileVectors, kTileVectors>(acc, others + c0 * kPanel, mine + c0 * kPanel + r0,
                                                         1, kPanel, columns);
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < kTileVectors; ++v) {
            T* const to = tile + (r0 + r) * kPanel + v * W;
            store(to, c0 > 0 ? load(to) + acc[r][v] : acc[r][v]);
          }
      });
    }
  }

  // r S as rows of entries: to the neighbours of i, then from those that it is a neighbour of.
  void graph(double reach) {
    for (int64_t i = 0; i <= N_; ++i) start_[i] = 0;
    for (int64_t i = 0; i < N_; ++i) degree_[i] = 0;
    each_edge([&](int64_t i, int64_t j, double half) {
      degree_[i] += half;
      degree_[j] += half;
      ++start_[i + 1];
      ++start_[j + 1];
    });
    for (int64_t i = 0; i < N_; ++i) {
      start_[i + 1] += start_[i];
      degree_[i] = 1 / __builtin_sqrt(degree_[i] > kLeastDegree ? degree_[i] : kLeastDegree);
    }
    auto add = [&](int64_t i, int64_t j, double half) {
      column_[start_[i]] = int32_t(j);
      value_[start_[i]++] = T(reach * degree_[i] * degree_[j] * half);
    };
    each_edge(add);
    each_edge([&](int64_t i, int64_t j, double half) { add(j, i, half); });
    for (int64_t i = N_; i > 0; --i) start_[i] = start_[i - 1];  // they were moved on by what was added
    start_[0] = 0;
  }
  template <class F>
  void each_edge(F f) const {
    for (int64_t i = 0; i < N_; ++i)
      for (int64_t n = 0; n < found_[i]; ++n)
        f(i, int64_t(neighbour_[i * kMostNeighbours + n]), double(weight_[i * kMostNeighbours + n]) / 2);
  }

  // sum_i = sum_j M_ij, in double.
  void ones(double reach, int64_t steps) {
    double *now = sum_, *before = unit_;
    for (int64_t i = 0; i < N_; ++i) now[i] = before[i] = 0;
    double factor = 1;
    for (int64_t step = 1; step <= steps; ++step) {
      factor = chebyshev_factor(step, reach, factor);
      for (int64_t i = 0; i < N_; ++i) {
        double sum = 1;
        for (int64_t e = start_[i]; e < start_[i + 1]; ++e) sum += double(value_[e]) * now[column_[e]];
        before[i] += factor * (sum - before[i]);
      }
      std::swap(now, before);
    }
    if (now != sum_)
      for (int64_t i = 0; i < N_; ++i) sum_[i] = now[i];
  }

  // (M c)_i, columns c0 .. c0 + n - 1, into out [N, dim].
  void smooth_columns(double reach, int64_t steps, int64_t c0, int64_t n, T* memory, T* out) {
    const int64_t width = columns_;
    T *c = memory, *now = c + N_ * width, *before = now + N_ * width;
    for (int64_t j = 0; j < N_ * width; ++j) now[j] = before[j] = c[j] = T(0);
    with_features<T>(task_, [&](auto* features) {
      const T* const mean = static_cast<const T*>(task_.mean) + c0;
      for (int64_t i = 0; i < N_; ++i)
        centre_row(features + task_.rows[i] * d_ + c0, scale_[i], mean, n, c + i * width);
    });
    double factor = 1;
    for (int64_t step = 1; step <= steps; ++step) {
      factor = chebyshev_factor(step, reach, factor);
      const T w = T(factor);
      for (int64_t i = 0; i < N_; ++i)
        for (int64_t v = 0; v < width; v += 2 * W) {
          const bool two = v + W < width;
          Vec<T> a = load(c + i * width + v), b = two ? load(c + i * width + v + W) : Vec<T>{};
          for (int64_t e = start_[i]; e < start_[i + 1]; ++e) {
            const T* const row = now + int64_t(column_[e]) * width + v;
            a += load(row) * value_[e];
            if (two) b += load(row + W) * value_[e];
          }
          T* const to = before + i * width + v;
          store(to, load(to) + (a - load(to)) * w);
          if (two) store(to + W, load(to + W) + (b - load(to + W)) * w);
        }
      std::swap(now, before);
    }
    for (int64_t i = 0; i < N_; ++i)
      for (int64_t j = 0; j < n; ++j) out[i * d_ + c0 + j] = now[i * width + j];
  }

  // From (M c)_i to u_i y_i minus what all have of the mean.
  void rescale(T* out, T* shift) {
    const T* const mean = static_cast<const T*>(task_.mean);
    double square = 0, total = 0;
    for (int64_t j = 0; j < d_; ++j) square += double(mean[j]) * double(mean[j]);
    with_features<T>(task_, [&](auto* features) {
      run(team_, (N_ + 255) / 256, [&](int64_t part) {
        for (int64_t i = part * 256; i < (part * 256 + 256 < N_ ? part * 256 + 256 : N_); ++i) {
          const T* const y = out + i * d_;
          Vec<T> owns = Vec<T>{}, alongs = Vec<T>{};
          int64_t j = 0;
          for (; j + W <= d_; j += W) {
            const Vec<T> v = load(y + j);
            owns += v * v;
            alongs += v * load(mean + j);
          }
          double own = double(reduce_add<T>(owns)), along = double(reduce_add<T>(alongs));
          for (; j < d_; ++j) {
            own += double(y[j]) * double(y[j]);
            along += double(y[j]) * double(mean[j]);
          }
          const double before = double(squared_norm<T>(features + task_.rows[i] * d_, d_)) *
                                double(scale_[i]) * double(scale_[i]);
          const double after = own + 2 * sum_[i] * along + sum_[i] * sum_[i] * square;
          unit_[i] = before > 0 && after > 0 ? __builtin_sqrt(before / after) : 0.0;
        }
      });
    });
    for (int64_t i = 0; i < N_; ++i) total += unit_[i] * sum_[i];
    const double share = total / double(N_);
    run(team_, (N_ + 255) / 256, [&](int64_t part) {
      for (int64_t i = part * 256; i < (part * 256 + 256 < N_ ? part * 256 + 256 : N_); ++i) {
        const T unit = T(unit_[i]), rest = T(unit_[i] * sum_[i] - share);
        for (int64_t j = 0; j < d_; ++j) out[i * d_ + j] = out[i * d_ + j] * unit + mean[j] * rest;
      }
    });
    for (int64_t j = 0; j < d_; ++j) shift[j] = T(double(mean[j]) * share);
  }

  const Task& task_;
  const T* scale_;
  const Team& team_;
  int64_t N_, d_, columns_, slots_, slot_size_;
  int32_t *neighbour_, *found_, *column_;
  int64_t* start_;
  T *weight_, *value_, *length_, *slot_;
  double *degree_, *sum_, *unit_;
};

// Bytes of workspace, and elements of out [N, dim]: more than that in between.
template <class T>
SmoothingMemory smoothing_memory(const Task& task, const Team& team) {
  Arena arena(nullptr);
  GraphSmoothing<T>(task, nullptr, team, arena);
  return {arena.used(), GraphSmoothing<T>::out_size(task)};
}
template <class T>
void smooth_rows(const Task& task, double reach, const T* scale, T* out, T* shift, const Team& team,
                 void* work) {
  Arena arena(work);
  GraphSmoothing<T>(task, scale, team, arena).smooth(reach, out, shift);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
