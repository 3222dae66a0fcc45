// The graph of the nearest neighbours of a task's samples, for smoothing.cuh; equations.h has the equations. c_i = z_i - mean
// are the rows that copy_rows left.
//
// A warp takes a sample; what it finds depends on the samples alone. The samples of a task are in the caller's order, so
// that of equally near ones the one with the smaller number is taken.
#pragma once

#include "cuda/core/forms.cuh"

namespace tim_ext {
namespace cuda {

constexpr int kNobody = 0x7fffffff;
constexpr int kNear = int(kMostNeighbours);

// The graph, and numbers of every sample; few pointers, as registers are short.
template <class T>
struct Graph {
  int* indices;    // two arrays [N][kNear]
  T* weights;      // two arrays [N][kNear]
  int64_t* first;  // [N + 1] of the sources of a sample
  T* numbers;      // five arrays [N]
  double* share;   // [N] u_i a_i, what z'_i has of the mean; behind those of the task, r
  int64_t indices_stride, weights_stride, numbers_stride;

  // The nearest of a sample, [N][kNear], then kNobody; b_ij or 0, after weigh_edges the half of r s_ij due to it.
  __device__ int* neighbour() const { return indices; }
  __device__ T* weight() const { return weights; }
  // Those that have sample i among their nearest, at first[i] .. first[i + 1] - 1, and the same of them.
  __device__ int* source() const { return indices + indices_stride; }
  __device__ T* source_weight() const { return weights + weights_stride; }
  __device__ T* length() const { return numbers; }                       // 1 / ||c_i||
  __device__ T* degree() const { return numbers + numbers_stride; }      // D_i^-1/2
  __device__ T* along() const { return numbers + 2 * numbers_stride; }   // c_i . mean
  __device__ T* square() const { return numbers + 3 * numbers_stride; }  // ||z_i||^2
  // e_i = u_i (M c)_i . mean in the Gram domain; u_i on the features
  __device__ T* crossed() const { return numbers + 4 * numbers_stride; }

  template <class F>
  __device__ __forceinline__ void each_edge(int64_t i, F f) const {  // f(j, half of r s_ij)
    for (int m = 0; m < kNear && neighbour()[i * kNear + m] != kNobody; ++m)
      f(neighbour()[i * kNear + m], weight()[i * kNear + m]);
    for (int64_t e = first[i]; e < first[i + 1]; ++e) f(source()[e], source_weight()[e]);
  }
};
template <class T>
__host__ __device__ Graph<T> take_graph(Arena& arena, int64_t N) {
  Graph<T> g{};
  g.indices = arena.take_equal<int>(2, N * kNear, &g.indices_stride);
  g.weights = arena.take_equal<T>(2, N * kNear, &g.weights_stride);
  g.first = arena.take<int64_t>(N + 1);
  g.numbers = arena.take_equal<T>(5, N, &g.numbers_stride);
  g.share = arena.take<double>(N + 1);
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
      g.length()[i] = own > Range<T>::tiny ? T(1) / sqrt(own) : T(0);
      g.along()[i] = along;
      g.square()[i] = square;
    }
  }
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
    const T cosine = value * g.length()[i];
    g.neighbour()[i * kNear + lane_id()] = sample;
    g.weight()[i * kNear + lane_id()] = cosine * cosine * cosine;
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
        values[m] = j < n && j != i ? gram[i * ld + j] * g.length()[j] : T(0);
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
      if (a != team.rank || b > 0) __syncthreads();  // the tile before has been read
      T tile[kGramTile][kGramTile];
      gram_tile<kGramTile, false>(rows, rows, n, a * side, b * side, rows.pitch, stage, tile);
#pragma unroll
      for (int r = 0; r < kGramTile; ++r)
#pragma unroll
        for (int c = 0; c < kGramTile; ++c) {
          const int i = a * side + y + 16 * r, j = b * side + x + 16 * c;
          stage[(y + 16 * r) * side + x + 16 * c] = j < n && i != j ? tile[r][c] * g.length()[j] : T(0);
        }
      __syncthreads();
      for (int r = int(threadIdx.x) / kLanes; r < side && a * side + r < n; r += kWarps) {
        const int64_t i = a * side + r, at = i * kNear + lane;
        Nearest<T> nearest;
        if (b > 0 && lane < kNear) {  // as this lane has left it
          nearest.value = g.weight()[at];
          nearest.sample = g.neighbour()[at];
        }
        T values[2] = {stage[r * side + lane], stage[r * side + kLanes + lane]};
        nearest.offer(values, b * side, k);
        if (b == tiles - 1) {
          nearest.write(g, i);
        } else if (lane < kNear) {
          g.weight()[at] = nearest.value;
          g.neighbour()[at] = nearest.sample;
        }
      }
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
    T sum = lane < kNear ? g.weight()[i * kNear + lane] : T(0);
#pragma unroll 4
    for (int64_t e = lane; e < edges; e += kLanes) {
      const int j = g.neighbour()[e];
      before += j < i;
      mine += j == i;
    }
    before = warp_sum(before);
    int64_t at = before + warp_sum_before(mine);
#pragma unroll 1
    for (int64_t e = lane; e < edges; e += kLanes)
      if (g.neighbour()[e] == i) {
        g.source()[at] = int(e / kNear);
        g.source_weight()[at++] = g.weight()[e];
        sum += g.weight()[e];
      }
    sum = warp_sum(sum) / 2;
    if (lane == 0) {
      g.first[i] = before;
      if (i == n - 1) g.first[n] = before + mine;
      g.degree()[i] = T(1) / sqrt(sum > T(kLeastDegree) ? sum : T(kLeastDegree));
    }
  }
}
// From b_ij to r s_ij, whose halves are due to b_ij and b_ji.
template <class T>
__device__ void weigh_edges(const Team& team, int n, T reach, const Graph<T>& g) {
  const int lane = lane_id();
  for (int64_t i = team.warp(); i < n; i += team.warps()) {
    const T factor = reach / 2 * g.degree()[i];
    const int64_t at = i * kNear + lane;
    if (lane < kNear && g.neighbour()[at] != kNobody)
      g.weight()[at] *= factor * g.degree()[g.neighbour()[at]];
    for (int64_t e = g.first[i] + lane; e < g.first[i + 1]; e += kLanes)
      g.source_weight()[e] *= factor * g.degree()[g.source()[e]];
  }
}

}  // namespace cuda
}  // namespace tim_ext
