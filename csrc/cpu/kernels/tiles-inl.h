// The three inner products of the solvers, as register tiles of NR x NV vectors. NR = 4, NV = 3 fills
// the 16 registers of AVX2: 12 accumulators, 3 loads, 1 broadcast; 12 multiply-adds for 7 loads.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/vectors-inl.h"

namespace tim_ext {
namespace TIM_ISA {

constexpr int kTileRows = 4, kTileVectors = 3;
// Of a square matrix over samples, in panels (Panels): AVX-512 has registers for 16 accumulators and 4 loads.
constexpr int kPanelVectors = TIM_VEC_BYTES == 64 ? 4 : kTileVectors;
// Where vectors run along feature rows (dot_rows, accumulate_rows), 32 registers have room for 24 accumulators.
constexpr int kWideRows = TIM_REGISTERS == 32 ? 6 : kTileRows,
              kWideVectors = TIM_REGISTERS == 32 ? 4 : kTileVectors;

// GCC would rather read a value again from memory for every multiply-add that uses it, and be bound by its loads.
template <class V>
TIM_INLINE void in_register([[maybe_unused]] V& value) {
#if defined(__x86_64__)
  asm("" : "+v"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
}

// Calls f(std::integral_constant<int, n>) for a run-time n in 1 .. Max.
template <int Max, class F>
TIM_INLINE void with_constant(int n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_constant<Max - 1>(n, f);
  }
  f(std::integral_constant<int, Max>{});
}

// Splits n columns into tiles of at most `Rows` whose sizes differ by at most one:
// f(first, constant size).
template <int Rows = kTileRows, class F>
TIM_INLINE void for_row_tiles(int64_t n, F&& f) {
  int64_t tiles = (n + Rows - 1) / Rows;
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t first = n * t / tiles, last = n * (t + 1) / tiles;
    with_constant<Rows>(int(last - first), [&](auto size) { f(first, size); });
  }
}

// acc[r][v] += sum_j a[j][v] b[r][j];  a: panel [n][Stride] vectors, b[r][j] at b[r * b_row + j * b_step].
template <class T, int NR, int NV, int Stride>
TIM_INLINE void multiply_tile(Vec<T> (&acc)[NR][NV], const T* a, const T* b, int64_t b_row, int64_t b_step,
                              int64_t n) {
  constexpr int W = kWidth<T>;
  // Narrow tiles run several sums side by side, to cover the latency of the multiply-add.
  constexpr int kSplit = NR * NV >= 8 ? 1 : NR * NV >= 4 ? 2 : 4;
  auto step = [&](Vec<T>(&sum)[NR][NV], int64_t j) TIM_LAMBDA_INLINE {
    Vec<T> av[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) av[v] = load(a + (j * Stride + v) * W);
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      Vec<T> bv = splat<T>(b[r * b_row + j * b_step]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) sum[r][v] += av[v] * bv;
    }
  };
  int64_t j = 0;
  if constexpr (kSplit > 1) {
    Vec<T> other[kSplit - 1][NR][NV] = {};
    for (; j + kSplit <= n; j += kSplit) {
      step(acc, j);
#pragma GCC unroll 4
      for (int s = 1; s < kSplit; ++s) step(other[s - 1], j + s);
    }
#pragma GCC unroll 4
    for (int s = 1; s < kSplit; ++s)
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[r][v] += other[s - 1][r][v];
  }
  for (; j < n; ++j) step(acc, j);
}

// Lanes from .. from + 3 of v as the first four, 0 behind them.
template <class T, int from, int... I>
TIM_INLINE Vec<T> four_of(Vec<T> v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, Vec<T>{}, (I < 4 ? from + I : kWidth<T>)...);
}
template <class T, int... I>
TIM_INLINE Vec<T> by_fours(const Vec<T>* b, std::integer_sequence<int, I...>) {
  const Vec<T> ab = __builtin_shufflevector(b[0], b[1], (I / 4 == 0 ? I : kWidth<T> + I)...);
  const Vec<T> cd = __builtin_shufflevector(b[2], b[3], (I / 4 == 2 ? I : kWidth<T> + I)...);
  return __builtin_shufflevector(ab, cd, (I / 4 < 2 ? I : kWidth<T> + I)...);
}

// multiply_tile where the vector behind the NV ones holds only four samples: the four columns of b share one sum for it,
// tail[4 r + l] += sum_j a[j][NV][l] b[r][j]. For widths of four times four.
template <class T, int NV, int Stride>
TIM_INLINE void multiply_tile_and_tail(Vec<T> (&acc)[4][NV], Vec<T>& tail, const T* a, const T* b,
                                       int64_t b_row, int64_t n) {
  constexpr int W = kWidth<T>;
  static_assert(W == 16);
  constexpr std::make_integer_sequence<int, W> lanes{};
  for (int64_t j = 0; j < n; ++j) {
    Vec<T> av[NV], bv[4];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) av[v] = load(a + (j * Stride + v) * W);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      bv[r] = splat<T>(b[r * b_row + j]);
      in_register(bv[r]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] += av[v] * bv[r];
    }
    tail += four_times(a + (j * Stride + NV) * W) * by_fours<T>(bv, lanes);
  }
}

// A square matrix over samples in panels of columns of up to kPanelVectors vectors, [panel][row][columns of the panel], so
// that a product reads it in order. Their widths differ by one at most, the wider ones last.
template <class T>
struct Panels {
  static constexpr int W = kWidth<T>;
  int64_t lanes = 0, vectors = 0;

  Panels() = default;
  explicit Panels(int64_t samples)
      : lanes(round_up(samples, W)),
        vectors(lanes / W),
        count_((vectors + kPanelVectors - 1) / kPanelVectors),
        narrow_(vectors / (count_ > 0 ? count_ : 1)),
        wide_(vectors - narrow_ * count_) {}
  int64_t count() const { return count_; }
  void get(int64_t j, int64_t* first, int64_t* width) const {  // in vectors
    const int64_t wider = j - (count_ - wide_);                // panels before it with one more
    *first = j * narrow_ + (wider > 0 ? wider : 0);
    *width = narrow_ + (wider >= 0);
  }
  // Where the element of row r and column i lies; a whole vector of columns if i is its first.
  template <class U>
  U* at(U* matrix, int64_t r, int64_t i) const {
    const int64_t v = i / W, in_narrow = narrow_ * (count_ - wide_);
    const int64_t width = narrow_ + (v >= in_narrow);
    const int64_t first = v < in_narrow ? v / width * width : in_narrow + (v - in_narrow) / width * width;
    return matrix + first * W * lanes + (r * width + v - first) * W + i % W;
  }

 private:
  int64_t count_ = 0;
  int64_t narrow_ = 0, wide_ = 0;  // vectors of a narrow panel; panels with one more
};

// The products below call meanwhile(tile, tiles) before each of their tiles.
struct NothingMeanwhile {
  TIM_INLINE void operator()(int64_t, int64_t) const {}
};

// Rows z_i as the products over features read them: x_i where they lie.
template <class T>
struct PlainRows {
  const T* const* x;
  TIM_INLINE Vec<T> common(int64_t) const { return Vec<T>{}; }
  TIM_INLINE Vec<T> read(const T* row, int64_t c, Vec<T>) const { return load(row + c); }
  TIM_INLINE T one(int64_t i, int64_t c) const { return x[i][c]; }
  TIM_INLINE void fetch(const T*, int64_t) const {}
};
// x_i - centre, made in registers from rows that come from memory.
template <class T>
struct CentredRows {
  const T* const* x;
  const T* centre;
  TIM_INLINE Vec<T> common(int64_t c) const { return load(centre + c); }
  TIM_INLINE Vec<T> read(const T* row, int64_t c, Vec<T> of_centre) const {
    return load(row + c) - of_centre;
  }
  TIM_INLINE T one(int64_t i, int64_t c) const { return x[i][c] - centre[c]; }
  // The cache line that begins at column c, of a row some way behind this one.
  TIM_INLINE void fetch(const T* row, int64_t c) const {
    constexpr int64_t line = 64 / sizeof(T), ahead = 32768 / sizeof(T);
    if (kWidth<T> >= line || c % line == 0) __builtin_prefetch(row + c + ahead, 0, 2);
  }
};

// out[k * ld + i] = scale[i] * sum_c z_i[c] v[k * v_ld + c] for all k < columns, i < n.
// Vectors run over c, so rows are read where they lie; each sum is the same whatever the tile.
template <int MostR, int MostS, class T, class Rows, class Meanwhile>
void dot_rows_in_tiles(Rows rows, const T* scale, int64_t n, const T* v, int64_t v_ld, int64_t columns,
                       int64_t dim, T* out, int64_t ld, Meanwhile meanwhile) {
  const int64_t tiles = (columns + MostR - 1) / MostR * ((n + MostS - 1) / MostS);
  int64_t tile = 0;
  constexpr int W = kWidth<T>;
  const int64_t whole = dim - dim % W;
  for_row_tiles<MostR>(columns, [&](int64_t k0, auto nr) {
    constexpr int NR = decltype(nr)::value;
    for (int64_t i0 = 0; i0 < n; i0 += MostS) {
      meanwhile(tile++, tiles);
      with_constant<MostS>(int(n - i0 < MostS ? n - i0 : MostS), [&](auto ns) {
        constexpr int NS = decltype(ns)::value;
        Vec<T> acc[NR][NS] = {};
        const T *x[NS], *of_v[NR];  // in registers: after a fetch GCC reads again what it refers to
#pragma GCC unroll 8
        for (int s = 0; s < NS; ++s) x[s] = rows.x[i0 + s];
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r) of_v[r] = v + (k0 + r) * v_ld;
        const Rows here = rows;
        for (int64_t c = 0; c < whole; c += W) {
          const Vec<T> common = here.common(c);
          if (k0 == 0)
#pragma GCC unroll 8
            for (int s = 0; s < NS; ++s) here.fetch(x[s], c);
          if constexpr (MostS <= MostR) {  // the fewer stay in registers
            Vec<T> xv[NS];
#pragma GCC unroll 8
            for (int s = 0; s < NS; ++s) xv[s] = here.read(x[s], c, common);
#pragma GCC unroll 8
            for (int r = 0; r < NR; ++r) {
              Vec<T> vv = load(of_v[r] + c);
              in_register(vv);
#pragma GCC unroll 8
              for (int s = 0; s < NS; ++s) acc[r][s] += xv[s] * vv;
            }
          } else {
            Vec<T> vv[NR];
#pragma GCC unroll 8
            for (int r = 0; r < NR; ++r) vv[r] = load(of_v[r] + c);
#pragma GCC unroll 8
            for (int s = 0; s < NS; ++s) {
              Vec<T> xv = here.read(x[s], c, common);
              in_register(xv);
#pragma GCC unroll 8
              for (int r = 0; r < NR; ++r) acc[r][s] += xv * vv[r];
            }
          }
        }
        if constexpr (NS == 4 && W >= 4) {
          if (whole == dim) {  // four sums at once into their places
            typedef T Four __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
            const Four four_scales = *reinterpret_cast<const Four*>(scale + i0);
#pragma GCC unroll 8
            for (int r = 0; r < NR; ++r) {
              const Vec<T> sums = reduce_add4<T>(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
              const Four four = __builtin_shufflevector(sums, sums, 0, 1, 2, 3);
              *reinterpret_cast<Four*>(out + (k0 + r) * ld + i0) = four * four_scales;
            }
            return;
          }
        }
#pragma GCC unroll 8
        for (int s = 0; s < NS; ++s) {
          T sum[NR];
          if constexpr (NR == 4 && W >= 4) {
            const Vec<T> sums = reduce_add4<T>(acc[0][s], acc[1][s], acc[2][s], acc[3][s]);
            for (int r = 0; r < NR; ++r) sum[r] = sums[r];
          } else {
            for (int r = 0; r < NR; ++r) sum[r] = reduce_add<T>(acc[r][s]);
          }
          for (int r = 0; r < NR; ++r) {
            for (int64_t c = whole; c < dim; ++c) sum[r] += rows.one(i0 + s, c) * v[(k0 + r) * v_ld + c];
            out[(k0 + r) * ld + i0 + s] = sum[r] * scale[i0 + s];
          }
        }
      });
    }
  });
}

template <class T, class Rows, class Meanwhile = NothingMeanwhile>
void dot_rows(Rows rows, const T* scale, int64_t n, const T* v, int64_t v_ld, int64_t columns, int64_t dim,
              T* out, int64_t ld, Meanwhile meanwhile = {}) {
  // With 16 registers 12 sums of three columns and four rows, which leave together, or of the four columns there are.
  if (kWideRows <= 4 && columns > 4)
    dot_rows_in_tiles<3, 4>(rows, scale, n, v, v_ld, columns, dim, out, ld, meanwhile);
  else
    dot_rows_in_tiles<kWideRows, kWideVectors>(rows, scale, n, v, v_ld, columns, dim, out, ld, meanwhile);
}

// out[k * out_ld + c] (+)= sum_i coef[k * ld + i] z_i[c] for all k < columns, c < dim; += if add.
template <class T, class Rows, class Meanwhile = NothingMeanwhile>
void accumulate_rows(Rows rows, int64_t n, const T* coef, int64_t ld, int64_t columns, int64_t dim, bool add,
                     T* out, int64_t out_ld, Meanwhile meanwhile = {}) {
  constexpr int W = kWidth<T>;
  const int64_t whole = dim / W;
  const int64_t tiles = (columns + kWideRows - 1) / kWideRows * ((whole + kWideVectors - 1) / kWideVectors);
  int64_t tile = 0;
  for (int64_t c0 = 0; c0 < whole; c0 += kWideVectors) {
    with_constant<kWideVectors>(int(whole - c0 < kWideVectors ? whole - c0 : kWideVectors), [&](auto nv) {
      constexpr int NV = decltype(nv)::value;
      for_row_tiles<kWideRows>(columns, [&](int64_t k0, auto nr) {
        constexpr int NR = decltype(nr)::value;
        meanwhile(tile++, tiles);
        Vec<T> acc[NR][NV] = {}, common[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) common[v] = rows.common((c0 + v) * W);
        for (int64_t i = 0; i < n; ++i) {
          const T* const x = rows.x[i];
          Vec<T> xv[NV];
#pragma GCC unroll 8
          for (int v = 0; v < NV; ++v) xv[v] = rows.read(x, (c0 + v) * W, common[v]);
#pragma GCC unroll 8
          for (int r = 0; r < NR; ++r) {
            Vec<T> b = splat<T>(coef[(k0 + r) * ld + i]);
            in_register(b);
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) acc[r][v] += xv[v] * b;
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < NV; ++v) {
            T* o = out + (k0 + r) * out_ld + (c0 + v) * W;
            store(o, add ? load(o) + acc[r][v] : acc[r][v]);
          }
      });
    });
  }
  for (int64_t c = whole * W; c < dim; ++c)
    for (int64_t k = 0; k < columns; ++k) {
      T sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += coef[k * ld + i] * rows.one(i, c);
      out[k * out_ld + c] = add ? out[k * out_ld + c] + sum : sum;
    }
}

}  // namespace TIM_ISA
}  // namespace tim_ext
