// Smoothing over the graph of the nearest neighbours, before the first iteration; equations.h has the equations, and
// cpu/kernels/smoothing-inl.h those of the Gram domain. c_i = z_i - mean are the rows that copy_rows left.
//
//   dual    M = (I - r S)^-1 by Gauss and Jordan, G' from M G M: three products of N^3, nothing of the length of the features
//   primal  M c by Chebyshev's iteration on the rows c themselves
//
// A warp takes a sample; what it finds depends on the samples alone. The samples of a task are in the caller's order, so
// that of equally near ones the one with the smaller number is taken.
#pragma once

#include "cuda/core/forms.cuh"

namespace tim_ext {
namespace cuda {

constexpr int kNobody = 0x7fffffff;
constexpr int kNear = int(kMostNeighbours);

// The graph, and numbers of every sample.
template <class T>
struct Graph {
  int* neighbour;         // [N][kNear] the nearest, then kNobody
  T* weight;              // [N][kNear] b_ij or 0; after weigh_edges the half of r s_ij that is due to it
  int* source;            // [N kNear] those that have a sample among their nearest: first[i] .. last[i] - 1
  T* source_weight;       // [N kNear] as weight
  int64_t *first, *last;  // [N]
  T* length;              // [N] 1 / ||c_i||
  T* degree;              // [N] D_i^-1/2
  T* along;               // [N] c_i . mean
  T* square;              // [N] ||z_i||^2
  T* crossed;             // [N] e_i = u_i (M c)_i . mean in the Gram domain; u_i on the features
  double* share;          // [N] u_i a_i, what z'_i has of the mean

  template <class F>
  __device__ __forceinline__ void each_edge(int64_t i, F f) const {  // f(j, half of r s_ij)
    for (int m = 0; m < kNear && neighbour[i * kNear + m] != kNobody; ++m)
      f(neighbour[i * kNear + m], weight[i * kNear + m]);
    for (int64_t e = first[i]; e < last[i]; ++e) f(source[e], source_weight[e]);
  }
};
template <class T>
__host__ __device__ Graph<T> take_graph(Arena& arena, int64_t N) {
  Graph<T> g{};
  g.neighbour = arena.take<int>(N * kNear);
  g.weight = arena.take<T>(N * kNear);
  g.source = arena.take<int>(N * kNear);
  g.source_weight = arena.take<T>(N * kNear);
  g.first = arena.take<int64_t>(N);
  g.last = arena.take<int64_t>(N);
  g.length = arena.take<T>(N);
  g.degree = arena.take<T>(N);
  g.along = arena.take<T>(N);
  g.square = arena.take<T>(N);
  g.crossed = arena.take<T>(N);
  g.share = arena.take<double>(N);
  return g;
}

// Lengths. Lanes read what they themselves have written in copy_rows: no barrier between.
template <class T>
__device__ void measure_samples(const Team& team, const T* z, int n, int64_t pitch, const T* mean,
                                const Graph<T>& g) {
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    T own = 0, along = 0, square = 0, x[kVector<T>], m[kVector<T>];
    for (int64_t c = lane_id() * kVector<T>; c < pitch; c += kLanes * kVector<T>) {
      load_vector(z + i * pitch + c, x);
      load_vector(mean + c, m);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        own += x[j] * x[j];
        along += x[j] * m[j];
        square += (x[j] + m[j]) * (x[j] + m[j]);
      }
    }
    own = warp_sum(own);
    along = warp_sum(along);
    square = warp_sum(square);
    if (lane_id() == 0) {
      g.length[i] = own > Range<T>::tiny ? T(1) / sqrt(own) : T(0);
      g.along[i] = along;
      g.square[i] = square;
    }
  }
}
// ||mean||^2, by every warp.
template <class T>
__device__ double mean_square(const T* mean, int64_t pitch) {
  double square = 0;
  for (int64_t c = lane_id(); c < pitch; c += kLanes) square += double(mean[c]) * double(mean[c]);
  return warp_sum(square);
}
// The mean of u_i a_i, by every warp: so much of the task's mean is subtracted from all z'_i.
template <class T>
__device__ double mean_share(const Graph<T>& g, int n) {
  double sum = 0;
  for (int i = lane_id(); i < n; i += kLanes) sum += g.share[i];
  return warp_sum(sum) / n;
}
// u_i = ||z_i|| / ||y_i||,  y_i = (M c)_i + a_i mean.
__device__ __forceinline__ double unit_of(double square, double own, double sum, double along,
                                          double mean_square) {
  const double after = own + 2 * sum * along + sum * sum * mean_square;
  return square > 0 && after > 0 ? sqrt(square / after) : 0.0;
}

template <class T>
__device__ double reach_of(const AdmWeights<T>& c, const TaskArrays<T>& a) {
  return smoothing_reach(c, double(a.support) / a.K);
}

// Neighbours ---------------------------------------------------------------------------------------

// The k nearest found so far, the nearest first: lane m of a warp has the m-th. Only what is positive counts.
template <class T>
struct Nearest {
  T value = 0;
  int sample = kNobody;

  // Takes what is nearer of samples first + 32 m + lane, m < Each, that come after those offered before.
  template <int Each>
  __device__ __forceinline__ void offer(T (&values)[Each], int first, int k) {
    const int lane = lane_id();
    const T limit = __shfl_sync(kAllLanes, value, k > 0 ? k - 1 : 0);
    bool nearer = false;
#pragma unroll
    for (int m = 0; m < Each; ++m) nearer = nearer || values[m] > limit;
    if (__any_sync(kAllLanes, nearer) == 0) return;
    Nearest found;
    for (int round = 0; round < k; ++round) {
      T best = value;
      int at = sample;
#pragma unroll
      for (int m = 0; m < Each; ++m)
        if (values[m] > best) {
          best = values[m];
          at = first + kLanes * m + lane;
        }
      const T top = warp_max(best);
      if (!(top > T(0))) break;
      const int nearest = warp_min(best == top ? at : kNobody);
      if (lane == round) {
        found.value = top;
        found.sample = nearest;
      }
      if (sample == nearest) value = T(0);
#pragma unroll
      for (int m = 0; m < Each; ++m)
        if (first + kLanes * m + lane == nearest) values[m] = T(0);
    }
    *this = found;
  }
  // b_ij = cos^3; the values are cosines times ||c_i||.
  __device__ __forceinline__ void write(const Graph<T>& g, int64_t i) const {
    if (lane_id() >= kNear) return;
    const T cosine = value * g.length[i];
    g.neighbour[i * kNear + lane_id()] = sample;
    g.weight[i * kNear + lane_id()] = cosine * cosine * cosine;
  }
};

// From the rows of G [n][ld].
template <class T>
__device__ void neighbours_of_gram(const Team& team, const T* gram, int64_t ld, int n, int k,
                                   const Graph<T>& g) {
  constexpr int each = 4;
  for (int i = team.warp(); i < n; i += team.warps()) {
    Nearest<T> nearest;
    for (int first = 0; first < n; first += each * kLanes) {
      T values[each];
#pragma unroll
      for (int m = 0; m < each; ++m) {
        const int j = first + kLanes * m + lane_id();
        values[m] = j < n && j != i ? gram[i * ld + j] * g.length[j] : T(0);
      }
      nearest.offer(values, first, k);
    }
    nearest.write(g, i);
  }
}

// From tiles of G, one after the other in shared memory: a block takes 64 samples and goes through all.
template <class T>
__device__ void neighbours_of_rows(const Team& team, const MatrixRows<T>& rows, int n, int k, T* stage,
                                   const Graph<T>& g) {
  constexpr int side = 16 * kGramTile;
  static_assert(side == 2 * kLanes && side * side <= gram_stage<kGramTile, false>(),
                "a tile of G in the stage");
  const int y = int(threadIdx.x) / 16, x = int(threadIdx.x) % 16, lane = lane_id();
  const int tiles = (n + side - 1) / side;
  for (int a = team.rank; a < tiles; a += team.size)
    for (int b = 0; b < tiles; ++b) {
      T tile[kGramTile][kGramTile];
      gram_tile<kGramTile, false>(rows, rows, n, a * side, b * side, rows.pitch, stage, tile);
#pragma unroll
      for (int r = 0; r < kGramTile; ++r)
#pragma unroll
        for (int c = 0; c < kGramTile; ++c) {
          const int i = a * side + y + 16 * r, j = b * side + x + 16 * c;
          stage[(y + 16 * r) * side + x + 16 * c] = j < n && i != j ? tile[r][c] * g.length[j] : T(0);
        }
      __syncthreads();
      for (int r = int(threadIdx.x) / kLanes; r < side && a * side + r < n; r += kWarps) {
        const int64_t i = a * side + r, at = i * kNear + lane;
        Nearest<T> nearest;
        if (b > 0 && lane < kNear) {  // as this lane has left it
          nearest.value = g.weight[at];
          nearest.sample = g.neighbour[at];
        }
        T values[2] = {stage[r * side + lane], stage[r * side + kLanes + lane]};
        nearest.offer(values, b * side, k);
        if (b == tiles - 1) {
          nearest.write(g, i);
        } else if (lane < kNear) {
          g.weight[at] = nearest.value;
          g.neighbour[at] = nearest.sample;
        }
      }
      __syncthreads();
    }
}

// Graph --------------------------------------------------------------------------------------------

// Who has a sample among its nearest, found by looking at all: N kNear numbers per sample, far less than its N cosines
// took. The order of the sources is by lane.
template <class T>
__device__ void link_neighbours(const Team& team, int n, const Graph<T>& g) {
  const int lane = lane_id();
  const int64_t edges = int64_t(n) * kNear;
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    long long before = 0;
    int mine = 0;
    T sum = lane < kNear ? g.weight[i * kNear + lane] : T(0);
#pragma unroll 4
    for (int64_t e = lane; e < edges; e += kLanes) {
      const int j = g.neighbour[e];
      before += j < i;
      mine += j == i;
    }
    before = warp_sum(before);
    int64_t at = before + warp_sum_before(mine);
#pragma unroll 4
    for (int64_t e = lane; e < edges; e += kLanes)
      if (g.neighbour[e] == i) {
        g.source[at] = int(e / kNear);
        g.source_weight[at++] = g.weight[e];
        sum += g.weight[e];
      }
    sum = warp_sum(sum) / 2;
    mine = warp_sum(mine);
    if (lane == 0) {
      g.first[i] = before;
      g.last[i] = before + mine;
      g.degree[i] = T(1) / sqrt(sum > T(kLeastDegree) ? sum : T(kLeastDegree));
    }
  }
}
// From b_ij to r s_ij, whose halves are due to b_ij and b_ji.
template <class T>
__device__ void weigh_edges(const Team& team, int n, T reach, const Graph<T>& g) {
  const int lane = lane_id();
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    const T factor = reach / 2 * g.degree[i];
    const int64_t at = i * kNear + lane;
    if (lane < kNear && g.neighbour[at] != kNobody) g.weight[at] *= factor * g.degree[g.neighbour[at]];
    for (int64_t e = g.first[i] + lane; e < g.last[i]; e += kLanes)
      g.source_weight[e] *= factor * g.degree[g.source[e]];
  }
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
    if (lane < kNear && g.neighbour[at] != kNobody) row[g.neighbour[at]] = -g.weight[at];
    __syncwarp();
    for (int64_t e = g.first[i] + lane; e < g.last[i]; e += kLanes) row[g.source[e]] -= g.source_weight[e];
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
    for (int j = lane_id(); j < n; j += kLanes) {
      sum += m[j];
      along += m[j] * g.along[j];
      own += m[j] * mg[j];
    }
    sum = warp_sum(sum);
    along = warp_sum(along);
    own = warp_sum(own);
    const double unit = unit_of(double(g.square[i]), double(own), double(sum), double(along), square);
    for (int j = lane_id(); j < n; j += kLanes) {
      m[j] *= T(unit);
      mg[j] *= T(unit);
    }
    if (lane_id() == 0) {
      g.share[i] = unit * double(sum);
      g.crossed[i] = T(unit * double(along));
    }
  }
}

// G' in place of G [n][ld]:  G'_ij = u_i u_j (M G M)_ij + f_i e_j + e_i f_j + f_i f_j ||mean||^2,  f_i = u_i a_i - (their mean)
template <class T>
__device__ void smooth_gram(Team& team, const TaskArrays<T>& a, double reach, const T* mean, int64_t pitch,
                            T* stage, T* gram, const GramSmoothing<T>& s) {
  const Graph<T>& g = s.graph;
  const int n = a.n;
  const int64_t ld = a.ld, columns = round_up(n, kVector<T>);
  const MatrixRows<T> of_gram{gram, ld, columns}, of_inverse{s.inverse, ld, columns},
      of_product{s.product, ld, columns};
  neighbours_of_gram(team, gram, ld, n, int(neighbours_of(n, a.K)), g);
  TIM_SYNC(team);
  link_neighbours(team, n, g);
  TIM_SYNC(team);
  weigh_edges(team, n, T(reach), g);
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
      value += g.crossed[i] * fj + fi * (g.crossed[j] + fj * square);
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

// z [n][pitch] <- z'_i - share mean; returns share.
template <class T>
__device__ double smooth_rows(Team& team, const TaskArrays<T>& a, double reach, const T* mean, int64_t pitch,
                              T* stage, T* z, const RowSmoothing<T>& s) {
  const Graph<T>& g = s.graph;
  const int n = a.n;
  neighbours_of_rows(team, MatrixRows<T>{z, pitch, pitch}, n, int(neighbours_of(n, a.K)), stage, g);
  TIM_SYNC(team);
  link_neighbours(team, n, g);
  TIM_SYNC(team);
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
    for (int64_t c = lane_id(); c < pitch; c += kLanes) {
      own += y[i * pitch + c] * y[i * pitch + c];
      along += y[i * pitch + c] * mean[c];
    }
    own = warp_sum(own);
    along = warp_sum(along);
    const double sum = double(sums[i]);
    const double unit = unit_of(double(g.square[i]), double(own), sum, double(along), square);
    if (lane_id() == 0) {
      g.share[i] = unit * sum;
      g.crossed[i] = T(unit);
    }
  }
  TIM_SYNC(team);
  const double share = mean_share(g, n);
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    const T unit = g.crossed[i], rest = T(g.share[i] - share);
    for (int64_t c = lane_id(); c < pitch; c += kLanes)
      z[i * pitch + c] = y[i * pitch + c] * unit + mean[c] * rest;
  }
  TIM_SYNC(team);
  return share;
}

}  // namespace cuda
}  // namespace tim_ext
