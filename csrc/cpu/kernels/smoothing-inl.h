// Smoothing over the neighbour graph in the Gram domain, for the dual form; equations.h has the equations.
//
// With c_i = z_i - mean, G = c c^T [N, N], g_i = c_i . mean and M = (I - r S)^-1, a row of the smoothed features is
//   y_i = sum_j M_ij z_j = sum_j M_ij c_j + a_i mean,   a_i = sum_j M_ij
//   z'_i = u_i y_i,   u_i = ||z_i|| / ||y_i||,   ||y_i||^2 = (M G M)_ii + 2 a_i (M g)_i + a_i^2 ||mean||^2.
// Distances need no common part, so that a multiple of the mean is subtracted from all z'_i, and no digits are lost where
// it is most of them: with f_i = u_i a_i - (their mean) and e_i = u_i (M g)_i,
//   G'_ij = u_i u_j (M G M)_ij + f_i e_j + e_i f_j + f_i f_j ||mean||^2.
// Two products and an inverse of N^3 multiply-adds each; nothing of the length of the features.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/tiles-inl.h"
#include "cpu/kernels/workspace-inl.h"

namespace tim_ext {
namespace TIM_ISA {

// The nearest neighbours of one sample, the nearest first; of equally near ones the one that comes first for the caller.
template <class T>
struct Nearest {
  T value[kMostNeighbours];
  int64_t sample[kMostNeighbours];
  int64_t count = 0, most;
  const int64_t* position;

  Nearest(int64_t k, const int64_t* where) : most(k), position(where) {}
  // Of a full list: what is below it is none of them. Only what is positive has a weight.
  T limit() const { return count > 0 && count == most ? value[count - 1] : T(0); }
  void offer(T v, int64_t i) {
    auto before = [&](int64_t j) {
      return v > value[j] || (v == value[j] && position[i] < position[sample[j]]);
    };
    if (most == 0 || (count == most && !before(count - 1))) return;  // a sample alone has no neighbour
    int64_t j = count < most ? count++ : count - 1;
    for (; j > 0 && before(j - 1); --j) {
      value[j] = value[j - 1];
      sample[j] = sample[j - 1];
    }
    value[j] = v;
    sample[j] = i;
  }
};

// The same list from the values [lanes] of all samples, which are spent; those of the sample itself and of padding are not
// positive. The largest of every W-th value are kept, and k times the largest of those is taken: no branch depends on the
// values, as long as they differ.
template <class T>
void take_nearest(T* values, int64_t lanes, Nearest<T>& nearest) {
  constexpr int W = kWidth<T>;
  T top[W];
  int64_t where[W];
  bool twice[W];  // whether the largest may be there more than once
  auto scan = [&](int64_t l) {
    T best = values[l];
    int64_t at = l;
    bool equal = false;
    for (int64_t i = l + W; i < lanes; i += W) {
      equal |= values[i] == best;
      at = values[i] > best ? i : at;
      best = values[i] > best ? values[i] : best;
    }
    top[l] = best;
    where[l] = at;
    twice[l] = equal;
  };
  for (int64_t l = 0; l < W; ++l) scan(l);
  for (nearest.count = 0; nearest.count < nearest.most; ++nearest.count) {
    int64_t lane = 0;
    bool equal = false;
    for (int64_t l = 1; l < W; ++l) {
      equal |= top[l] == top[lane];
      lane = top[l] > top[lane] ? l : lane;
    }
    const T largest = top[lane];
    if (!(largest > T(0))) return;
    int64_t best = where[lane];
    if (equal || twice[lane])
      for (int64_t i = 0; i < lanes; ++i)
        if (values[i] == largest && nearest.position[i] < nearest.position[best]) best = i;
    nearest.value[nearest.count] = largest;
    nearest.sample[nearest.count] = best;
    values[best] = T(-1);
    scan(best % W);
  }
}

// Rows of 4 at a time: Gauss-Jordan without a search for pivots, as I - r S is symmetric and positive definite, with
// eigenvalues between 1 - r and 1 + r. matrix [n][pitch], n and pitch multiples of 4; beyond the samples it is 1.
template <class T>
void invert_in_place(T* matrix, int64_t n, int64_t pitch, int64_t vectors) {
  constexpr int W = kWidth<T>;
  for (int64_t p = 0; p < n; p += 4) {
    T inverse[4][4], block[4][4];
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) {
        block[i][j] = matrix[(p + i) * pitch + p + j];
        inverse[i][j] = T(i == j);
      }
    for (int c = 0; c < 4; ++c) {
      const T pivot = T(1) / block[c][c];
      for (int j = 0; j < 4; ++j) {
        block[c][j] *= pivot;
        inverse[c][j] *= pivot;
      }
      for (int i = 0; i < 4; ++i) {
        if (i == c) continue;
        const T factor = block[i][c];
        for (int j = 0; j < 4; ++j) {
          block[i][j] -= factor * block[c][j];
          inverse[i][j] -= factor * inverse[c][j];
        }
      }
    }
    T* const rows = matrix + p * pitch;
    for (int64_t v = 0; v < vectors; ++v) {  // the four rows times the inverse of their block
      Vec<T> row[4];
      for (int i = 0; i < 4; ++i) row[i] = load(rows + i * pitch + v * W);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        store(rows + i * pitch + v * W, row[0] * inverse[i][0] + row[1] * inverse[i][1] +
                                            row[2] * inverse[i][2] + row[3] * inverse[i][3]);
    }
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) rows[i * pitch + p + j] = inverse[i][j];
    for (int64_t i = 0; i < n; ++i) {
      if (i >= p && i < p + 4) continue;
      T* const row = matrix + i * pitch;
      T factor[4];
      for (int c = 0; c < 4; ++c) {
        factor[c] = row[p + c];
        row[p + c] = T(0);
      }
      for (int64_t v = 0; v < vectors; ++v)
        store(row + v * W,
              load(row + v * W) -
                  (load(rows + v * W) * factor[0] + load(rows + pitch + v * W) * factor[1] +
                   load(rows + 2 * pitch + v * W) * factor[2] + load(rows + 3 * pitch + v * W) * factor[3]));
    }
  }
}

template <class T>
class GramSmoothing {
 public:
  static constexpr int W = kWidth<T>;
  T* along_mean;  // [lanes] g_i

  GramSmoothing(const Task& task, const Panels<T>& panels, Arena& arena) : task_(task), panels_(panels) {
    const int64_t lanes = panels.lanes;
    rows_ = round_up(task.samples(), 4);
    pitch_ = rows_ > lanes ? rows_ : lanes;  // more than lanes only where a vector holds two numbers
    inverse_ = arena.take<T>(rows_ * pitch_);
    product_ = arena.take<T>(rows_ * lanes);
    scaled_ = arena.take<T>(lanes * lanes);
    for (T** array : {&along_mean, &length_, &unit_, &of_mean_, &crossed_}) *array = arena.take<T>(lanes);
    degree_ = arena.take<double>(lanes);
    neighbour_ = arena.take<int64_t>(task.samples() * kMostNeighbours);
    weight_ = arena.take<T>(task.samples() * kMostNeighbours);
    found_ = arena.take<int64_t>(task.samples());
  }

  // G' in place of G (panels of columns); scale: of the rows, 0 for one that stays zero.
  void smooth(T* gram, double reach, const T* scale, const Team& team) {
    neighbours(gram, team);
    graph(reach);
    invert_in_place(inverse_, rows_, pitch_, panels_.lanes / W);
    multiply(gram, inverse_, pitch_, team, [&](int64_t r, int64_t i, Vec<T> sum) TIM_LAMBDA_INLINE {
      store(product_ + r * panels_.lanes + i, sum);
    });
    lengths(gram, scale);
    scale_columns();
    multiply(scaled_, product_, panels_.lanes, team, [&](int64_t r, int64_t i, Vec<T> sum) TIM_LAMBDA_INLINE {
      const Vec<T> along = load(of_mean_ + i), across = load(crossed_ + i);
      const Vec<T> rest = across * of_mean_[r] + along * (crossed_[r] + of_mean_[r] * mean_square_);
      store(panels_.at(gram, r, i), sum * unit_[r] + rest);
    });
  }

  // Coefficients of the smoothed samples, class-major [K][lanes], to those of the samples: C'_jk = sum_i u_i M_ij C_ik.
  void unsmooth(const T* coefficients, T* out, int64_t classes) const {
    const int64_t lanes = panels_.lanes;
    for (int64_t k = 0; k < classes; ++k) {
      T* const row = out + k * lanes;
      for (int64_t v = 0; v < lanes; v += W) store(row + v, Vec<T>{});
      for (int64_t i = 0; i < task_.samples(); ++i) {
        const T c = coefficients[k * lanes + i] * unit_[i];
        for (int64_t v = 0; v < lanes; v += W)
          store(row + v, load(row + v) + load(inverse_ + i * pitch_ + v) * c);
      }
    }
  }
  double share_of_mean() const { return share_of_mean_; }  // of the mean that was subtracted from all z'_i

 private:
  // The k nearest of every sample by the cosine of z_i - mean, and b_ij.
  void neighbours(const T* gram, const Team& team) {
    const int64_t N = task_.samples(), k = neighbours_of(N, task_.classes);
    for (int64_t i = 0; i < panels_.lanes; ++i) {
      const T square = i < N ? *panels_.at(gram, i, i) : T(0);
      length_[i] = square > Range<T>::tiny ? T(1) / __builtin_sqrt(square) : T(0);
    }
    run(team, (N + 63) / 64, [&](int64_t part) {
      for (int64_t i = part * 64; i < (part * 64 + 64 < N ? part * 64 + 64 : N); ++i) {
        Nearest<T> nearest(k, task_.position);
        T* const values = product_ + i * panels_.lanes;
        for (int64_t j = 0; j < panels_.lanes; j += W)
          store(values + j, load(panels_.at(gram, i, j)) * load(length_ + j));
        values[i] = T(-1);
        take_nearest(values, panels_.lanes, nearest);
        found_[i] = nearest.count;
        for (int64_t n = 0; n < nearest.count; ++n) {
          const T cosine = nearest.value[n] * length_[i];
          neighbour_[i * kMostNeighbours + n] = nearest.sample[n];
          weight_[i * kMostNeighbours + n] = cosine * cosine * cosine;
        }
      }
    });
  }

  // I - r S in inverse_.
  void graph(double reach) {
    const int64_t N = task_.samples();
    for (int64_t j = 0; j < rows_ * pitch_; ++j) inverse_[j] = T(0);
    for (int64_t i = 0; i < N; ++i) degree_[i] = 0;
    each_edge([&](int64_t i, int64_t j, T half) {
      degree_[i] += double(half);
      degree_[j] += double(half);
    });
    for (int64_t i = 0; i < N; ++i)
      degree_[i] = 1 / __builtin_sqrt(degree_[i] > kLeastDegree ? degree_[i] : kLeastDegree);
    each_edge([&](int64_t i, int64_t j, T half) {
      const T s = T(reach * degree_[i] * degree_[j] * double(half));
      inverse_[i * pitch_ + j] -= s;
      inverse_[j * pitch_ + i] -= s;
    });
    for (int64_t i = 0; i < rows_; ++i) inverse_[i * pitch_ + i] += T(1);
  }
  template <class F>
  void each_edge(F f) const {
    for (int64_t i = 0; i < task_.samples(); ++i)
      for (int64_t n = 0; n < found_[i]; ++n)
        f(i, neighbour_[i * kMostNeighbours + n], weight_[i * kMostNeighbours + n] / T(2));
  }

  // u_i, f_i, e_i; product_ is M G.
  void lengths(const T* gram, const T* scale) {
    const int64_t N = task_.samples();
    const T* const mean = static_cast<const T*>(task_.mean);
    double square = 0, total = 0;
    for (int64_t j = 0; j < task_.dim; ++j) square += double(mean[j]) * double(mean[j]);
    for (int64_t i = 0; i < N; ++i) {
      Vec<T> sums = Vec<T>{}, alongs = Vec<T>{}, owns = Vec<T>{};
      for (int64_t j = 0; j < panels_.lanes; j += W) {
        const Vec<T> m = load(inverse_ + i * pitch_ + j);
        sums += m;
        alongs += m * load(along_mean + j);
        owns += m * load(product_ + i * panels_.lanes + j);
      }
      const double sum = double(reduce_add<T>(sums)), along = double(reduce_add<T>(alongs)),
                   own = double(reduce_add<T>(owns));  // a_i, (M g)_i, (M G M)_ii
      const double before = double(*panels_.at(gram, i, i)) + 2 * double(along_mean[i]) + square;
      const double after = own + 2 * sum * along + sum * sum * square;
      const double unit = scale[i] > 0 && before > 0 && after > 0 ? __builtin_sqrt(before / after) : 0.0;
      unit_[i] = T(unit);
      degree_[i] = unit * sum;
      crossed_[i] = T(unit * along);
      total += degree_[i];
    }
    share_of_mean_ = total / double(N);
    mean_square_ = T(square);
    for (int64_t i = 0; i < N; ++i) of_mean_[i] = T(degree_[i] - share_of_mean_);
    for (int64_t i = N; i < panels_.lanes; ++i) unit_[i] = of_mean_[i] = crossed_[i] = T(0);
  }

  // scaled_[j][i] = M_ji u_i, in panels of columns.
  void scale_columns() {
    for (int64_t j = 0; j < task_.samples(); ++j)
      for (int64_t i = 0; i < panels_.lanes; i += W)
        store(panels_.at(scaled_, j, i), load(inverse_ + j * pitch_ + i) * load(unit_ + i));
  }

  // f(r, i, sum_j matrix[j][i ..] rows[r][j]) for every sample r and vector of columns i of a matrix in panels.
  template <class F>
  void multiply(const T* matrix, const T* rows, int64_t ld, const Team& team, F f) {
    run(team, panels_.count(), [&](int64_t j) {
      int64_t first, width;
      panels_.get(j, &first, &width);
      with_constant<kPanelVectors>(int(width), [&](auto nv) {
        constexpr int NV = decltype(nv)::value;
        for_row_tiles(task_.samples(), [&](int64_t r0, auto nr) {
          constexpr int NR = decltype(nr)::value;
          Vec<T> acc[NR][NV] = {};
          multiply_tile<T, NR, NV, NV>(acc, matrix + first * W * panels_.lanes, rows + r0 * ld, ld, 1,
                                       task_.samples());
#pragma GCC unroll 8
          for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) f(r0 + r, (first + v) * W, acc[r][v]);
        });
      });
    });
  }

  const Task& task_;
  const Panels<T>& panels_;
  int64_t rows_, pitch_;
  T *inverse_, *product_, *scaled_, *length_, *unit_, *of_mean_, *crossed_, *weight_;
  double* degree_;
  int64_t *neighbour_, *found_;
  T mean_square_ = 0;
  double share_of_mean_ = 0;
};

}  // namespace TIM_ISA
}  // namespace tim_ext
