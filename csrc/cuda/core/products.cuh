// The three products of TIM, by the threads of one block or of a team.
//
//   gram_tile           rows times rows, a square tile in the registers of a block: G = Z Z^T
//   dot_rows            z_i . v_k           lanes along the features, sums over lanes
//   accumulate_columns  sum_i x_ik z_i      lanes along the columns, warps along the samples
//
// Sums run in an order that depends on the shapes alone: neither the number of blocks in a team nor the batch
// changes a bit.
#pragma once

#include "cuda/core/problem.cuh"

namespace tim_ext {
namespace cuda {

// Gram ---------------------------------------------------------------------------------------------
//
// 16 x 16 threads; thread (y, x) holds g[r][c] = left_(i0 + y + 16 r) . right_(j0 + x + 16 c), r, c < Tile. Per step, 16
// features of all rows go through shared memory, transposed and in groups of four rows of a thread, so that a thread
// reads its rows with 16-byte loads: element (feature f, row y + 16 r) at [f][r / 4][y][r % 4]. Two stages: while one
// is multiplied, the next is on its way to registers, from where it goes to the other.

constexpr int kStep = 16;     // features
constexpr int kGramTile = 4;  // where the tile goes to memory

template <int Tile>
__host__ __device__ constexpr int stage_row() {
  return (Tile + 3) / 4 * 64;
}
// Elements of shared memory for gram_tile; `Same`: the tile is on the diagonal of G, i0 == j0.
template <int Tile, bool Same>
__host__ __device__ constexpr int gram_stage() {
  return 2 * (Same ? 1 : 2) * kStep * stage_row<Tile>();
}

// The part of a thread in filling stages: a warp takes 32 rows and kVector columns at a time.
template <int Tile, class T, class Rows>
struct StageFiller {
  static constexpr int vectors = kStep / kVector<T>, blocks = (Tile + 1) / 2 * vectors;
  static constexpr int shares = (blocks + kWarps - 1) / kWarps;
  const Rows& rows;
  typename Rows::Row row[shares];
  T v[shares][kVector<T>];
  bool real[shares];  // a row of the task, or 0

  __device__ __forceinline__ static int block(int share) {
    return int(threadIdx.x) / kLanes + share * kWarps;
  }
  __device__ __forceinline__ static int local(int share) {
    return block(share) / vectors * kLanes + lane_id();
  }
  __device__ __forceinline__ StageFiller(const Rows& all, int n, int i0) : rows(all) {
#pragma unroll
    for (int m = 0; m < shares; ++m) {
      real[m] = local(m) < 16 * Tile && i0 + local(m) < n;
      row[m] = rows.open(real[m] ? i0 + local(m) : 0);
    }
  }
  // Columns f0 .. f0 + 15 of rows i0 .. i0 + 16 Tile - 1: on their way
  __device__ __forceinline__ void load(int64_t f0) {
#pragma unroll
    for (int m = 0; m < shares; ++m) {
      if (real[m]) {
        rows.load(row[m], f0 + block(m) % vectors * kVector<T>, v[m]);
      } else {
#pragma unroll
        for (int j = 0; j < kVector<T>; ++j) v[m][j] = T(0);
      }
    }
  }
  // ... and in the stage.
  __device__ __forceinline__ void store(T* stage) const {
#pragma unroll
    for (int m = 0; m < shares; ++m) {
      const int r = local(m) / 16, y = local(m) % 16, f = block(m) % vectors * kVector<T>;
      if (r >= Tile) continue;
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j)
        stage[(f + j) * stage_row<Tile>() + r / 4 * 64 + y * 4 + r % 4] = v[m][j];
    }
  }
};

template <int Tile, bool Same, class T, class Rows>
__device__ __forceinline__ void gram_tile(const Rows& left, const Rows& right, int n, int i0, int j0,
                                          int64_t dim, T* stage, T (&g)[Tile][Tile]) {
  constexpr int groups = (Tile + 3) / 4, one = kStep * stage_row<Tile>(), both = Same ? one : 2 * one;
  const int y = int(threadIdx.x) / 16, x = int(threadIdx.x) % 16;
#pragma unroll
  for (int r = 0; r < Tile; ++r)
#pragma unroll
    for (int c = 0; c < Tile; ++c) g[r][c] = T(0);

  StageFiller<Tile, T, Rows> upper(left, n, i0), lower(right, n, Same ? i0 : j0);
  auto load = [&](int64_t f0) {
    upper.load(f0);
    if (!Same) lower.load(f0);
  };
  auto store = [&](T* to) {
    upper.store(to);
    if (!Same) lower.store(to + one);
  };
  load(0);
  store(stage);
  __syncthreads();
  int side = 0;
  for (int64_t f0 = 0; f0 < dim; f0 += kStep) {
    const T* const a = stage + side * both;
    const T* const b = Same ? a : a + one;
    const bool more = f0 + kStep < dim;
    if (more) load(f0 + kStep);
#pragma unroll 4
    for (int f = 0; f < kStep; ++f) {
      T of_row[4 * groups], of_column[4 * groups];
#pragma unroll
      for (int group = 0; group < groups; ++group) {
        load_four(a + f * stage_row<Tile>() + group * 64 + y * 4, of_row + 4 * group);
        load_four(b + f * stage_row<Tile>() + group * 64 + x * 4, of_column + 4 * group);
      }
#pragma unroll
      for (int r = 0; r < Tile; ++r)
#pragma unroll
        for (int c = Same ? r : 0; c < Tile; ++c) g[r][c] = g[r][c] + of_row[r] * of_column[c];
    }
    if (more) store(stage + (1 - side) * both);
    __syncthreads();
    side = 1 - side;
  }
  if constexpr (Same && Tile > 1) {  // what lies below the diagonal, from the thread opposite
#pragma unroll
    for (int r = 0; r < Tile - 1; ++r) {
#pragma unroll
      for (int c = r + 1; c < Tile; ++c) stage[(c - r - 1) * 272 + y * 17 + x] = g[r][c];
      __syncthreads();
#pragma unroll
      for (int c = r + 1; c < Tile; ++c) g[c][r] = stage[(c - r - 1) * 272 + x * 17 + y];
      __syncthreads();
    }
  }
}

// emit(i, j, left_i . right_j) for every i < n and j of whole tiles, 0 from j = n on; a symmetric product is computed
// above the diagonal and mirrored.
template <int Tile, bool Symmetric, class T, class Rows, class Emit>
__device__ __forceinline__ void row_products(const Team& team, const Rows& left, const Rows& right, int n,
                                             int64_t dim, T* stage, Emit emit) {
  constexpr int side = 16 * Tile;
  const int y = int(threadIdx.x) / 16, x = int(threadIdx.x) % 16;
  const int tiles = (n + side - 1) / side;
  int number = 0;
  for (int a = 0; a < tiles; ++a)
    for (int b = Symmetric ? a : 0; b < tiles; ++b) {
      if (number++ % team.size != team.rank) continue;
      T g[Tile][Tile];
      gram_tile<Tile, false>(left, right, n, a * side, b * side, dim, stage, g);
#pragma unroll
      for (int r = 0; r < Tile; ++r)
#pragma unroll
        for (int c = 0; c < Tile; ++c) {
          const int i = a * side + y + 16 * r, j = b * side + x + 16 * c;
          if (i < n) emit(i, j, g[r][c]);
          if (Symmetric && a != b && j < n) emit(j, i, g[r][c]);
        }
    }
}
// G [n][pitch].
template <int Tile, class T, class Rows>
__device__ void gram_matrix(const Team& team, const Rows& rows, int n, int64_t dim, T* stage, T* gram,
                            int64_t pitch) {
  row_products<Tile, true>(team, rows, rows, n, dim, stage, [&](int i, int j, T value) {
    if (j < pitch) gram[i * pitch + j] = value;
  });
}

// Rows times vectors -------------------------------------------------------------------------------

constexpr int kRowTile = 4, kClassTile = 8;

// emit(k, i, z_i . v_k) once for every i < n, k < K; vectors are 0 beyond dim. A warp takes 4 rows and Classes vectors at
// a time: 32 sums over 32 lanes, of which lane j ends up with sum j; or 16, and lanes 2 j, 2 j + 1. What lies beyond n and
// K is computed from the last row or vector and dropped: no branch between loads.
template <int Classes, class T, class Rows, class Vectors, class Emit>
__device__ __forceinline__ void dot_rows_by(const Team& team, const Rows& rows, int n, int64_t dim,
                                            const Vectors& vectors, int K, Emit emit) {
  constexpr int sums = kRowTile * Classes;
  const int lane = lane_id();
  for (int i0 = team.warp() * kRowTile; i0 < n; i0 += team.warps() * kRowTile)
    for (int k0 = 0; k0 < K; k0 += Classes) {
      T sum[sums];
#pragma unroll
      for (int j = 0; j < sums; ++j) sum[j] = T(0);
      for (int64_t c = lane * kVector<T>; c < dim; c += kLanes * kVector<T>) {
        T z[kRowTile][kVector<T>], w[Classes][kVector<T>];
#pragma unroll
        for (int r = 0; r < kRowTile; ++r) rows.load(i0 + r < n ? i0 + r : n - 1, c, z[r]);
#pragma unroll
        for (int k = 0; k < Classes; ++k) vectors.load(k0 + k < K ? k0 + k : K - 1, c, w[k]);
#pragma unroll
        for (int k = 0; k < Classes; ++k)
#pragma unroll
          for (int r = 0; r < kRowTile; ++r)
#pragma unroll
            for (int j = 0; j < kVector<T>; ++j) sum[r * Classes + k] += z[r][j] * w[k][j];
      }
      halve<sums>(sum, lane, 16);
      halve<sums / 2>(sum, lane, 8);
      halve<sums / 4>(sum, lane, 4);
      halve<sums / 8>(sum, lane, 2);
      if constexpr (sums == 32)
        halve<2>(sum, lane, 1);
      else
        sum[0] += __shfl_xor_sync(kAllLanes, sum[0], 1);
      const int number = sums == 32 ? lane : lane / 2, r = number / Classes, k = number % Classes;
      if (i0 + r < n && k0 + k < K && (sums == 32 || lane % 2 == 0)) emit(k0 + k, i0 + r, sum[0]);
    }
}
template <class T, class Rows, class Vectors, class Emit>
__device__ __forceinline__ void dot_rows(const Team& team, const Rows& rows, int n, int64_t dim,
                                         const Vectors& vectors, int K, Emit emit) {
  if (K <= 4)
    dot_rows_by<4, T>(team, rows, n, dim, vectors, K, emit);
  else
    dot_rows_by<8, T>(team, rows, n, dim, vectors, K, emit);
}

// Sums of weighted rows ----------------------------------------------------------------------------

// Weights x_ik of samples, in groups of four classes: (i, k) at [k / 4][i][k % 4], groups `ld` samples apart.
__host__ __device__ __forceinline__ int64_t grouped(int64_t i, int64_t k, int64_t ld) {
  return (k / 4 * ld + i) * 4 + k % 4;
}
__host__ __device__ constexpr int64_t grouped_size(int64_t classes, int64_t ld) {
  return round_up(classes, 8) * ld;
}

template <class T>
struct GroupedWeights {
  const T* x;
  int64_t ld;
  // Of classes k .. k + 3, k a multiple of 4.
  __device__ __forceinline__ void load(int64_t i, int k, T* w) const { load_four(x + grouped(i, k, ld), w); }
};

template <class T>
constexpr int kPartial = kWarps * kClassTile * kLanes * kVector<T>;  // elements of shared memory

// Rows that a warp has under way, to cover the latency of L2: as many as registers hold.
template <class T>
constexpr int kAhead = sizeof(T) == 4 ? 4 : 2;

// Samples in one slice of a sum: slices of large tasks go to different blocks of the team.
constexpr int kSlice = 1024, kMaxSlices = 64;
__host__ __device__ constexpr int slices_of(int64_t n) {
  return n < 2 * kSlice ? 1 : int(n / kSlice < kMaxSlices ? n / kSlice : kMaxSlices);
}

// consume(k, c, sum_i x_ik rows_i[c]) once for every k < K, c < columns. A unit of work is 32 vectors of columns, a
// tile of classes and a slice of samples; its warps share the samples and add up in shared memory. A barrier must follow.
template <int Classes, class T, class Rows, class Weights, class Consume>
__device__ __forceinline__ void accumulate_columns_by(Team& team, const Rows& rows, int n, int64_t columns,
                                                      const Weights& weights, int K, T* partial, int slices,
                                                      T* sliced, Consume consume) {
  constexpr int width = kLanes * kVector<T>;
  const int warp = int(threadIdx.x) / kLanes, lane = lane_id();
  const int tiles = (K + Classes - 1) / Classes;
  const int64_t groups = (columns + width - 1) / width, units = groups * tiles * slices;
  for (int64_t unit = team.rank; unit < units; unit += team.size) {
    const int slice = int(unit % slices), k0 = int(unit / slices % tiles) * Classes;
    const int64_t c0 = unit / slices / tiles * width, c = c0 + lane * kVector<T>;
    const int begin = int(int64_t(n) * slice / slices), end = int(int64_t(n) * (slice + 1) / slices);
    T sum[Classes][kVector<T>];
#pragma unroll
    for (int k = 0; k < Classes; ++k)
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) sum[k][j] = T(0);
    auto add = [&](const T(&z)[kVector<T>], const T(&w)[Classes]) {
#pragma unroll
      for (int k = 0; k < Classes; ++k)
#pragma unroll
        for (int j = 0; j < kVector<T>; ++j) sum[k][j] += w[k] * z[j];
    };
    auto weights_of = [&](int i, T(&w)[Classes]) {
#pragma unroll
      for (int k = 0; k < Classes; k += 4) weights.load(i, k0 + k, w + k);
    };
    int i = begin + warp;
    for (; i + (kAhead<T> - 1) * kWarps < end; i += kAhead<T> * kWarps) {
      T z[kAhead<T>][kVector<T>], w[kAhead<T>][Classes];
#pragma unroll
      for (int u = 0; u < kAhead<T>; ++u) {
        rows.load(i + u * kWarps, c, z[u]);
        weights_of(i + u * kWarps, w[u]);
      }
#pragma unroll
      for (int u = 0; u < kAhead<T>; ++u) add(z[u], w[u]);
    }
    for (; i < end; i += kWarps) {
      T z[kVector<T>], w[Classes];
      rows.load(i, c, z);
      weights_of(i, w);
      add(z, w);
    }
    if (unit != team.rank) __syncthreads();  // the sums of the unit before have been read
#pragma unroll
    for (int k = 0; k < Classes; ++k)
      store_vector(partial + ((warp * Classes + k) * kLanes + lane) * kVector<T>, sum[k]);
    __syncthreads();
    for (int j = int(threadIdx.x); j < Classes * width; j += kThreads) {
      const int k = j / width, column = j % width;
      T total = partial[j];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) total += partial[w * Classes * width + j];
      if (k0 + k >= K || c0 + column >= columns) continue;
      if (slices == 1)
        consume(k0 + k, c0 + column, total);
      else
        sliced[(int64_t(slice) * K + k0 + k) * columns + c0 + column] = total;
    }
  }
  if (slices == 1) return;
  TIM_SYNC(team);
  const int64_t size = K * columns;
  for (int64_t j = team.thread(); j < size; j += team.threads()) {
    T total = sliced[j];
    for (int slice = 1; slice < slices; ++slice) total += sliced[slice * size + j];
    consume(int(j / columns), j % columns, total);
  }
}
template <class T, class Rows, class Consume>
__device__ __forceinline__ void accumulate_columns(Team& team, const Rows& rows, int n, int64_t columns,
                                                   const T* x, int64_t ld, int K, T* partial, T* sliced,
                                                   Consume consume) {
  accumulate_columns_by<kClassTile>(team, rows, n, columns, GroupedWeights<T>{x, ld}, K, partial,
                                    slices_of(n), sliced, consume);
}

}  // namespace cuda
}  // namespace tim_ext
