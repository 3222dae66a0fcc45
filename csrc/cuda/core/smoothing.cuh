// Smoothing over the graph of the nearest neighbours, before the first iteration; equations.h has the equations, and
// cpu/kernels/smoothing-inl.h those of the Gram domain.
//
//   dual    M = (I - r S)^-1 by Gauss and Jordan, G' from M G M: three products of N^3, nothing of the length of the features
//   primal  M c by Chebyshev's iteration on the rows c_i = z_i - mean themselves
#pragma once

#include "cuda/core/graph.cuh"

namespace tim_ext {
namespace cuda {

// ||mean||^2, by every warp.
template <class T>
__device__ double mean_square(const T* mean, int64_t pitch) {
  double square = 0;
#pragma unroll 1  // what an unrolled loop keeps in registers, the iterations lack
  for (int64_t c = lane_id(); c < pitch; c += kLanes) square += double(mean[c]) * double(mean[c]);
  return warp_sum(square);
}
// The mean of u_i a_i, by every warp: so much of the task's mean is subtracted from all z'_i.
template <class T>
__device__ double mean_share(const Graph<T>& g, int n) {
  double sum = 0;
#pragma unroll 1
  for (int i = lane_id(); i < n; i += kLanes) sum += g.share[i];
  return warp_sum(sum) / n;
}
// u_i = ||z_i|| / ||y_i||,  y_i = (M c)_i + a_i mean.
__device__ __forceinline__ double unit_of(double square, double own, double sum, double along,
                                          double mean_square) {
  const double after = own + 2 * sum * along + sum * sum * mean_square;
  return square > 0 && after > 0 ? sqrt(square / after) : 0.0;
}

// r, long before it is needed: there its computation would have no registers. A barrier must follow.
template <class T>
__device__ void keep_reach(const Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c,
                           const Graph<T>& g) {
  if (team.thread() == 0) g.share[a.n] = smoothing_reach(c, a.support, a.n, a.K);
}

// Gram domain --------------------------------------------------------------------------------------

constexpr int kPivots = 4;

template <class T>
struct GramSmoothing {
  Graph<T> graph;
  T* inverse;  // [round_up(N, kPivots)][ld] I - r S; M; at last u_i M_ij
  T* product;  // [N][ld] M G; at last u_i (M G)_ij
  T* rows;     // [kPivots][ld] the pivots' rows
  T* columns;  // [round_up(N, kPivots)][kPivots] and columns
};
template <class T>
__host__ __device__ GramSmoothing<T> take_gram_smoothing(Arena& arena, int64_t N, int64_t ld) {
  GramSmoothing<T> s{};
  s.graph = take_graph<T>(arena, N);
  s.inverse = arena.take<T>(round_up(N, kPivots) * ld);
  s.product = arena.take<T>(N * ld);
  s.rows = arena.take<T>(kPivots * ld);
  s.columns = arena.take<T>(round_up(N, kPivots) * kPivots);
  return s;
}

// I - r S, and 1 beyond the samples. Lanes take the edges that they have weighed: no barrier between.
template <class T>
__device__ void fill_matrix(const Team& team, int n, int64_t ld, const GramSmoothing<T>& s) {
  const Graph<T>& g = s.graph;
  const int lane = lane_id(), size = int(round_up(n, kPivots));
  for (int64_t i = team.warp(); i < size; i += team.warps()) {
    T* const row = s.inverse + i * ld;
    for (int j = lane; j < size; j += kLanes) row[j] = T(i == j);
    __syncwarp();
    if (i >= n) continue;
    const int64_t at = i * kNear + lane;
    if (lane < kNear && g.neighbour()[at] != kNobody) row[g.neighbour()[at]] = -g.weight()[at];
    __syncwarp();
    for (int64_t e = g.first[i] + lane; e < g.first[i + 1]; e += kLanes)
      row[g.source()[e]] -= g.source_weight()[e];
  }
}

// The inverse of the pivots' block, by every thread.
template <class T>
__device__ __forceinline__ void invert_block(const T* block, int64_t ld, T (&inverse)[kPivots][kPivots]) {
  T rest[kPivots][kPivots];
#pragma unroll
  for (int i = 0; i < kPivots; ++i) {
    load_four(block + i * ld, rest[i]);
#pragma unroll
    for (int j = 0; j < kPivots; ++j) inverse[i][j] = T(i == j);
  }
#pragma unroll
  for (int c = 0; c < kPivots; ++c) {
    const T pivot = T(1) / rest[c][c];
#pragma unroll
    for (int j = 0; j < kPivots; ++j) {
      rest[c][j] *= pivot;
      inverse[c][j] *= pivot;
    }
#pragma unroll
    for (int i = 0; i < kPivots; ++i) {
      if (i == c) continue;
      const T factor = rest[i][c];
#pragma unroll
      for (int j = 0; j < kPivots; ++j) {
        rest[i][j] -= factor * rest[c][j];
        inverse[i][j] -= factor * inverse[c][j];
      }
    }
  }
}

// Gauss-Jordan in place, four pivots at a time without a search, as I - r S is positive definite: first their rows times
// the inverse of their block, and their columns, beside the matrix; then all other elements.
template <class T>
__device__ void invert_matrix(Team& team, int n, int64_t ld, const GramSmoothing<T>& s) {
  const int size = int(round_up(n, kPivots));
  for (int p = 0; p < size; p += kPivots) {
    T inverse[kPivots][kPivots];
    invert_block(s.inverse + p * ld + p, ld, inverse);
    for (int64_t j = team.thread(); j < size; j += team.threads()) {
      T column[kPivots], of_row[kPivots];
      load_four(s.inverse + j * ld + p, of_row);
#pragma unroll
      for (int c = 0; c < kPivots; ++c) {
        column[c] = j >= p && j < p + kPivots ? T(j == p + c) : s.inverse[(p + c) * ld + j];
        s.columns[j * kPivots + c] = of_row[c];
      }
#pragma unroll
      for (int c = 0; c < kPivots; ++c)
        s.rows[c * ld + j] = inverse[c][0] * column[0] + inverse[c][1] * column[1] +
                             inverse[c][2] * column[2] + inverse[c][3] * column[3];
    }
    TIM_SYNC(team);
    for (int64_t j = lane_id() * kVector<T>; j < size; j += kLanes * kVector<T>) {
      T r[kPivots][kVector<T>];
#pragma unroll
      for (int c = 0; c < kPivots; ++c) load_vector(s.rows + c * ld + j, r[c]);
      const bool pivot_columns = j >= p && j < p + kPivots;
      for (int64_t i = team.warp(); i < size; i += team.warps()) {
        T x[kVector<T>], f[kPivots];
        if (i >= p && i < p + kPivots) {
          load_vector(s.rows + (i - p) * ld + j, x);
        } else {
          load_vector(s.inverse + i * ld + j, x);
          load_four(s.columns + i * kPivots, f);
#pragma unroll
          for (int v = 0; v < kVector<T>; ++v)
            x[v] = (pivot_columns ? T(0) : x[v]) -
                   (f[0] * r[0][v] + f[1] * r[1][v] + f[2] * r[2][v] + f[3] * r[3][v]);
        }
        store_vector(s.inverse + i * ld + j, x);
      }
    }
    TIM_SYNC(team);
  }
}

// u_i, with which rows of M and of M G are multiplied; u_i a_i and e_i.
template <class T>
__device__ void scale_inverse(const Team& team, int n, int64_t ld, const T* mean, int64_t pitch,
                              const GramSmoothing<T>& s) {
  const Graph<T>& g = s.graph;
  const double square = mean_square(mean, pitch);
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    T *const m = s.inverse + i * ld, *const mg = s.product + i * ld;
    T sum = 0, along = 0, own = 0;  // a_i, (M c)_i . mean, (M G M)_ii
#pragma unroll 1
    for (int j = lane_id(); j < n; j += kLanes) {
      sum += m[j];
      along += m[j] * g.along()[j];
      own += m[j] * mg[j];
    }
    sum = warp_sum(sum);
    along = warp_sum(along);
    own = warp_sum(own);
    const double unit = unit_of(double(g.square()[i]), double(own), double(sum), double(along), square);
#pragma unroll 1
    for (int j = lane_id(); j < n; j += kLanes) {
      m[j] *= T(unit);
      mg[j] *= T(unit);
    }
    if (lane_id() == 0) {
      g.share[i] = unit * double(sum);
      g.crossed()[i] = T(unit * double(along));
    }
  }
}

// G' in place of G [n][ld]:  G'_ij = u_i u_j (M G M)_ij + f_i e_j + e_i f_j + f_i f_j ||mean||^2,  f_i = u_i a_i - (their mean)
template <class T>
__device__ void smooth_gram(Team& team, const TaskArrays<T>& a, const T* mean, int64_t pitch, T* stage,
                            T* gram, const GramSmoothing<T>& s) {
  const Graph<T>& g = s.graph;
  const int n = a.n;
  const int64_t ld = a.ld, columns = round_up(n, kVector<T>);
  const MatrixRows<T> of_gram{gram, ld, columns}, of_inverse{s.inverse, ld, columns},
      of_product{s.product, ld, columns};
  neighbours_of_gram(team, gram, ld, n, int(neighbours_of(n, a.K)), g);
  TIM_SYNC(team);
  link_neighbours(team, n, g);
  TIM_SYNC(team);
  weigh_edges(team, n, T(g.share[n]), g);
  fill_matrix(team, n, ld, s);
  TIM_SYNC(team);
  invert_matrix(team, n, ld, s);
  row_products<kGramTile, false>(team, of_inverse, of_gram, n, columns, stage, [&](int i, int j, T value) {
    if (j < ld) s.product[i * ld + j] = value;
  });
  TIM_SYNC(team);
  scale_inverse(team, n, ld, mean, pitch, s);
  TIM_SYNC(team);
  const double share = mean_share(g, n);
  const T square = T(mean_square(mean, pitch));
  row_products<kGramTile, true>(team, of_product, of_inverse, n, columns, stage, [&](int i, int j, T value) {
    if (j >= ld) return;
    if (j < n) {
      const T fi = T(g.share[i] - share), fj = T(g.share[j] - share);
      value += g.crossed()[i] * fj + fi * (g.crossed()[j] + fj * square);
    }
    gram[i * ld + j] = value;
  });
  TIM_SYNC(team);
}

// From C of the smoothed samples to that of the samples, C_jk <- sum_i u_i M_ij C_ik; shift_k = what w_k has of the mean.
template <class T>
__device__ void unsmooth(Team& team, const TaskArrays<T>& a, const DualState<T>& d, const GramSmoothing<T>& s,
                         T* partial, T* sliced) {
  const double share = mean_share(s.graph, a.n);
  for (int k = team.warp(); k < a.K; k += team.warps()) {
    T sum = 0;
#pragma unroll 1
    for (int i = lane_id(); i < a.n; i += kLanes)
      sum += d.difference[grouped(i, k, a.ld)] * T(s.graph.share[i] - share);
    sum = warp_sum(sum);
    if (lane_id() == 0) a.shift()[k] = T(share) + sum;
  }
  accumulate_columns(team, MatrixRows<T>{s.inverse, a.ld, round_up(a.n, kVector<T>)}, a.n, int64_t(a.n),
                     d.difference, a.ld, a.K, partial, sliced,
                     [&](int k, int64_t j, T sum) { a.target(k)[j] = sum; });
  TIM_SYNC(team);
  for (int i = team.thread(); i < a.n; i += team.threads())
    for (int k = 0; k < a.K; ++k) d.difference[grouped(i, k, a.ld)] = a.target(k)[i];
  TIM_SYNC(team);
}

// On the features ----------------------------------------------------------------------------------

template <class T>
struct RowSmoothing {
  Graph<T> graph;
  T *even, *odd;          // [N][pitch] y of even and odd steps
  T *even_sum, *odd_sum;  // [N] the same of 1: a_i
};
template <class T>
__host__ __device__ RowSmoothing<T> take_row_smoothing(Arena& arena, int64_t N, int64_t pitch) {
  RowSmoothing<T> s{};
  s.graph = take_graph<T>(arena, N);
  s.even = arena.take<T>(N * pitch);
  s.odd = arena.take<T>(N * pitch);
  s.even_sum = arena.take<T>(N);
  s.odd_sum = arena.take<T>(N);
  return s;
}

// y_0 = 0 and y_1 = c, of rows that this very lane has written.
template <class T>
__device__ void start_steps(const Team& team, const T* z, int n, int64_t pitch, const RowSmoothing<T>& s) {
  const T zero[kVector<T>] = {};
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    for (int64_t c = lane_id() * kVector<T>; c < pitch; c += kLanes * kVector<T>) {
      T x[kVector<T>];
      load_vector(z + i * pitch + c, x);
      store_vector(s.odd + i * pitch + c, x);
      store_vector(s.even + i * pitch + c, zero);
    }
    if (lane_id() == 0) {
      s.even_sum[i] = T(0);
      s.odd_sum[i] = T(1);
    }
  }
}

// A step of Chebyshev's iteration: to <- to + w (r S now + c - to), and the same of 1.
template <class T>
__device__ void chebyshev_step(const Team& team, const T* z, int n, int64_t pitch, const Graph<T>& g, T w,
                               const T* now, const T* now_sum, T* to, T* to_sum) {
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    for (int64_t c = lane_id() * kVector<T>; c < pitch; c += kLanes * kVector<T>) {
      T sum[kVector<T>], old[kVector<T>];
      load_vector(z + i * pitch + c, sum);
      g.each_edge(i, [&](int64_t j, T weight) {
        T y[kVector<T>];
        load_vector(now + j * pitch + c, y);
#pragma unroll
        for (int v = 0; v < kVector<T>; ++v) sum[v] += weight * y[v];
      });
      load_vector(to + i * pitch + c, old);
#pragma unroll
      for (int v = 0; v < kVector<T>; ++v) old[v] += w * (sum[v] - old[v]);
      store_vector(to + i * pitch + c, old);
    }
    T sum = 1;
    g.each_edge(i, [&](int64_t j, T weight) { sum += weight * now_sum[j]; });
    if (lane_id() == 0) to_sum[i] += w * (sum - to_sum[i]);
  }
}

// z [n][pitch] <- z'_i - mean', mean <- mean' = share mean, share = mean_share. A barrier must follow.
template <class T>
__device__ void smooth_rows(Team& team, const TaskArrays<T>& a, T* mean, int64_t pitch, T* stage, T* z,
                            const RowSmoothing<T>& s) {
  const Graph<T>& g = s.graph;
  const int n = a.n;
  neighbours_of_rows(team, MatrixRows<T>{z, pitch, pitch}, n, int(neighbours_of(n, a.K)), stage, g);
  TIM_SYNC(team);
  link_neighbours(team, n, g);
  TIM_SYNC(team);
  const double reach = g.share[n];
  weigh_edges(team, n, T(reach), g);
  TIM_SYNC(team);
  const int64_t steps = chebyshev_steps<T>(reach);
  double factor = 1;
  T *y = s.odd, *sums = s.odd_sum, *other = s.even, *other_sums = s.even_sum;
  for (int64_t step = 2; step <= steps; ++step) {
    factor = chebyshev_factor(step, reach, factor);
    chebyshev_step(team, z, n, pitch, g, T(factor), y, sums, other, other_sums);
    TIM_SYNC(team);
    T *const last = y, *const last_sums = sums;
    y = other, sums = other_sums;
    other = last, other_sums = last_sums;
  }
  const double square = mean_square(mean, pitch);
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    T own = 0, along = 0;
#pragma unroll 1
    for (int64_t c = lane_id(); c < pitch; c += kLanes) {
      own += y[i * pitch + c] * y[i * pitch + c];
      along += y[i * pitch + c] * mean[c];
    }
    own = warp_sum(own);
    along = warp_sum(along);
    const double sum = double(sums[i]);
    const double unit = unit_of(double(g.square()[i]), double(own), sum, double(along), square);
    if (lane_id() == 0) {
      g.share[i] = unit * sum;
      g.crossed()[i] = T(unit);
    }
  }
  TIM_SYNC(team);
  const double share = mean_share(g, n);
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    const T unit = g.crossed()[i], rest = T(g.share[i] - share);
#pragma unroll 1
    for (int64_t c = lane_id(); c < pitch; c += kLanes)
      z[i * pitch + c] = y[i * pitch + c] * unit + mean[c] * rest;
  }
  TIM_SYNC(team);
  for (int64_t c = team.thread(); c < pitch; c += team.threads()) mean[c] *= T(share);
}

}  // namespace cuda
}  // namespace tim_ext
