// Reading feature rows: conversion of half types, lengths, and the transposed panels of the Gram product.
#pragma once

#include "cpu/kernels/prelude.h"
#include "cpu/kernels/vectors-inl.h"

namespace tim_ext {
namespace TIM_ISA {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// The next kWidth<T> elements of a row as a vector of T.
template <class T>
TIM_INLINE Vec<T> load_row(const T* p) {
  return load(p);
}
typedef uint16_t HalfBitsUnaligned __attribute__((vector_size(TIM_VEC_BYTES / 2), aligned(2), may_alias));
template <class T>
TIM_INLINE UVec<T> load_half_bits(const void* p) {
  return __builtin_convertvector(*static_cast<const HalfBitsUnaligned*>(p), UVec<T>);
}
template <class T>
TIM_INLINE Vec<T> load_row(const BFloat16* p) {
  return (Vec<T>)(load_half_bits<T>(p) << 16);
}
template <class T>
TIM_INLINE Vec<T> load_row(const Half* p) {
#if defined(__x86_64__) && TIM_VEC_BYTES == 64
  return (Vec<T>)_mm512_maskz_cvtph_ps(__mmask16(-1),
                                       (__m256i)(*reinterpret_cast<const HalfBitsUnaligned*>(p)));
#elif defined(__x86_64__) && TIM_VEC_BYTES == 32
  return (Vec<T>)_mm256_cvtph_ps((__m128i)(*reinterpret_cast<const HalfBitsUnaligned*>(p)));
#elif defined(__aarch64__)
  return (Vec<T>)vcvt_f32_f16((float16x4_t)vld1_u16(reinterpret_cast<const uint16_t*>(p)));
#else
  // Shift exponent and mantissa into place and rescale by 2^(127 - 15); Inf and NaN keep their exponent.
  const UVec<T> h = load_half_bits<T>(p);
  const Vec<T> value = (Vec<T>)((h & 0x7fffu) << 13) * 0x1p112f;
  const UVec<T> special = (UVec<T>)((h & 0x7c00u) == 0x7c00u);
  return (Vec<T>)((UVec<T>)value | (special & 0x7f800000u) | ((h & 0x8000u) << 16));
#endif
}

// Like load_row for the last `n` < width elements of a row; the other lanes are 0.
template <class T, class In>
TIM_INLINE Vec<T> load_row_tail(const In* p, int64_t n) {
  In lane[kWidth<T>] = {};
  for (int64_t i = 0; i < n; ++i) lane[i] = p[i];
  return load_row<T>(lane);
}

// Calls f(const In*) with the features in their own type.
template <class T, class F>
TIM_INLINE void with_features(const Task& task, F&& f) {
  if constexpr (sizeof(T) == 8) {
    f(static_cast<const double*>(task.features));
  } else {
    if (task.dtype == Dtype::f32) return f(static_cast<const float*>(task.features));
    if (task.dtype == Dtype::f16) return f(static_cast<const Half*>(task.features));
    f(static_cast<const BFloat16*>(task.features));
  }
}

// ||x||^2 in vectors of T; NaN or Inf if any element is, or if it leaves the range.
template <class T, class In>
TIM_INLINE T squared_norm(const In* x, int64_t dim) {
  constexpr int W = kWidth<T>;
  Vec<T> sum[4] = {};
  int64_t c = 0;
  for (; c + 4 * W <= dim; c += 4 * W)
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      Vec<T> v = load_row<T>(x + c + u * W);
      sum[u] += v * v;
    }
  for (; c < dim; c += W) {
    Vec<T> v = c + W <= dim ? load_row<T>(x + c) : load_row_tail<T>(x + c, dim - c);
    sum[0] += v * v;
  }
  return reduce_add<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <class T>
Rows measure_rows(const Task& task, bool normalize, T* scale, int64_t* bad) {
  Rows found = Rows::ordinary;
  with_features<T>(task, [&](auto* features) {
    for (int64_t i = 0; i < task.samples(); ++i) {
      auto* x = features + task.rows[i] * task.dim;
      T square = squared_norm<T>(x, task.dim);
      if (square > Range<T>::tiny && square < Range<T>::huge) {
        scale[i] = normalize ? T(1) / __builtin_sqrt(square) : T(1);
        continue;
      }
      // Rare: zero, out of range or not finite. |x| summed in units of its largest element tells which.
      T largest = 0;
      bool finite = true;
      for (int64_t c = 0; c < task.dim; ++c) {
        T a = load_row_tail<T>(x + c, 1)[0];
        a = a < 0 ? -a : a;
        finite = finite && a <= std::numeric_limits<T>::max();  // false for NaN too
        largest = a > largest ? a : largest;
      }
      if (!finite) {
        *bad = i;
        found = Rows::not_finite;
        return;
      }
      scale[i] = normalize ? T(0) : T(1);
      if (largest > 0) found = Rows::extreme;
    }
  });
  return found;
}

// Square roots of all elements, unless one is negative. (NaN stays, and is found later.)
template <class T>
bool root_rows(const Task& task, T* out) {
  constexpr int W = kWidth<T>;
  bool negative = false;
  with_features<T>(task, [&](auto* features) {
    for (int64_t i = 0; i < task.samples() && !negative; ++i) {
      auto* x = features + task.rows[i] * task.dim;
      T* const z = out + i * task.dim;
      Vec<T> smallest = Vec<T>{};
      int64_t c = 0;
      for (; c + W <= task.dim; c += W) {
        const Vec<T> v = load_row<T>(x + c);
        smallest = vmin(smallest, v);
        store(z + c, v);
      }
      for (; c < task.dim; ++c) {
        z[c] = load_row_tail<T>(x + c, 1)[0];
        negative = negative || z[c] < 0;
      }
      negative = negative || reduce_max<T>(-smallest) > 0;
      for (c = 0; c < task.dim; ++c)
        z[c] = sizeof(T) == 4 ? T(__builtin_sqrtf(float(z[c] + T(kLeastRoot))))
                              : T(__builtin_sqrt(double(z[c] + T(kLeastRoot))));
    }
  });
  return !negative;
}

// Every row to unit length, however long it is; a zero row stays zero.
template <class T>
void normalize_rows(const Task& task, T* out) {
  with_features<T>(task, [&](auto* features) {
    for (int64_t i = 0; i < task.samples(); ++i) {
      auto* x = features + task.rows[i] * task.dim;
      T* z = out + i * task.dim;
      T largest = 0;
      for (int64_t c = 0; c < task.dim; ++c) {
        z[c] = load_row_tail<T>(x + c, 1)[0];
        T a = z[c] < 0 ? -z[c] : z[c];
        largest = a > largest ? a : largest;
      }
      if (largest == 0) continue;
      double square = 0;  // of x / largest: between 1 and dim
      for (int64_t c = 0; c < task.dim; ++c) square += double(z[c] / largest) * double(z[c] / largest);
      T inverse = T(1 / __builtin_sqrt(square));
      for (int64_t c = 0; c < task.dim; ++c) z[c] = z[c] / largest * inverse;
    }
  });
}

// mean [dim] of scale_i x_i over the samples, 0 up to a whole vector. Any vector near it would do, but whatever subtracts
// it subtracts the same one: it depends on the samples and their order alone. Sums of 256 rows go into `total` [dim].
template <class T>
void mean_row(const Task& task, const T* scale, double* total, T* mean) {
  constexpr int W = kWidth<T>;
  constexpr int64_t kRows = 256;
  const int64_t N = task.samples(), d = task.dim, pitch = round_up(d, W);
  for (int64_t c = 0; c < d; ++c) total[c] = 0;
  with_features<T>(task, [&](auto* features) {
    for (int64_t i0 = 0; i0 < N; i0 += kRows) {
      const int64_t end = i0 + kRows < N ? i0 + kRows : N;
      for (int64_t c = 0; c < pitch; c += W) store(mean + c, Vec<T>{});
      for (int64_t i = i0; i < end; i += 4) {
        decltype(features) x[4], ahead[4];  // the next four rows are fetched
        T s[4];
        for (int64_t r = 0; r < 4; ++r) {
          x[r] = features + task.rows[i + r < end ? i + r : i] * d;
          ahead[r] = features + task.rows[i + r + 4 < N ? i + r + 4 : i] * d;
          s[r] = i + r < end ? scale[i + r] : T(0);
        }
        int64_t c = 0;
        for (; c + W <= d; c += W) {
          for (int r = 0; r < 4; ++r) __builtin_prefetch(ahead[r] + c);
          store(mean + c, load(mean + c) + (load_row<T>(x[0] + c) * s[0] + load_row<T>(x[1] + c) * s[1]) +
                              (load_row<T>(x[2] + c) * s[2] + load_row<T>(x[3] + c) * s[3]));
        }
        if (c < d)
          for (int r = 0; r < 4; ++r)
            store(mean + c, load(mean + c) + load_row_tail<T>(x[r] + c, d - c) * s[r]);
      }
      for (int64_t c = 0; c < d; ++c) total[c] += double(mean[c]);
    }
  });
  const double share = 1 / double(N);
  for (int64_t c = 0; c < d; ++c) mean[c] = T(total[c] * share);
}

// z [dim] = scale x - mean
template <class T, class In>
TIM_INLINE void centre_row(const In* x, T scale, const T* mean, int64_t dim, T* z) {
  constexpr int W = kWidth<T>;
  int64_t c = 0;
  for (; c + W <= dim; c += W) store(z + c, load_row<T>(x + c) * scale - load(mean + c));
  if (c < dim) {
    const Vec<T> tail = load_row_tail<T>(x + c, dim - c) * scale - load(mean + c);
    for (int64_t j = 0; c + j < dim; ++j) z[c + j] = tail[j];
  }
}

// out[i, :] = scale_i x_i - mean, which may replace x_i.
template <class T>
void centre_rows(const Task& task, const T* scale, T* out) {
  with_features<T>(task, [&](auto* features) {
    for (int64_t i = 0; i < task.samples(); ++i)
      centre_row(features + task.rows[i] * task.dim, scale[i], static_cast<const T*>(task.mean), task.dim,
                 out + i * task.dim);
  });
}

// out[c][i] = scale_i x_i[c0 + c] - mean[c0 + c] for the samples i = i0 .. i0 + rows - 1 (zero beyond the last one),
// rows a multiple of the vector width: a panel, transposed.
template <class T>
void pack_panel(const Task& task, const T* scale, int64_t i0, int64_t rows, int64_t c0, int64_t columns,
                T* out) {
  constexpr int W = kWidth<T>;
  const T* const mean = static_cast<const T*>(task.mean) + c0;
  with_features<T>(task, [&](auto* features) {
    for (int64_t b = 0; b < rows; b += W) {
      decltype(features) x[W];
      T s[W];
      const int64_t count = task.samples() - (i0 + b);  // real lanes, if less than W
      for (int l = 0; l < W; ++l) {
        x[l] = features + (l < count ? task.rows[i0 + b + l] : task.rows[0]) * task.dim + c0;
        s[l] = l < count ? scale[i0 + b + l] : T(0);
      }
      for (int64_t c = 0; c < columns; c += W) {
        Vec<T> block[W];
        const int64_t left = columns - c;
        const Vec<T> m = load(mean + c);
        if (left >= W && count >= W) {
#pragma GCC unroll 16
          for (int l = 0; l < W; ++l) block[l] = load_row<T>(x[l] + c) * s[l] - m;
        } else if (left >= W) {
#pragma GCC unroll 16
          for (int l = 0; l < W; ++l) block[l] = l < count ? load_row<T>(x[l] + c) * s[l] - m : Vec<T>{};
        } else {
          for (int l = 0; l < W; ++l) {
            block[l] = l < count ? load_row_tail<T>(x[l] + c, left) * s[l] - m : Vec<T>{};
          }
        }
        transpose<T>(block);
        if (left >= W) {
#pragma GCC unroll 16
          for (int l = 0; l < W; ++l) store(out + (c + l) * rows + b, block[l]);
        } else {
          for (int l = 0; l < left; ++l) store(out + (c + l) * rows + b, block[l]);
        }
      }
    }
  });
}

// Asks for the samples i0 .. i0 + n - 1, in the type they have, to be brought near while others are worked on.
template <class T>
TIM_INLINE void prefetch_samples(const Task& task, int64_t i0, int64_t n) {
  const int64_t end = i0 + n < task.samples() ? i0 + n : task.samples();
  with_features<T>(task, [&](auto* features) TIM_LAMBDA_INLINE {  // GCC drops a call that only prefetches
    const int64_t bytes = task.dim * int64_t(sizeof(*features));
    for (int64_t i = i0; i < end; ++i) {
      const char* x = reinterpret_cast<const char*>(features + task.rows[i] * task.dim);
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(x + at, 0, 2);
    }
  });
}

// Whether samples must still be centred: z_i = scale_i x_i - mean.
inline bool centring(const Task& task) { return task.mean != nullptr && !task.centred; }

// A row of dim numbers in whole cache lines, an odd number of them: the same columns of many rows then lie in different
// sets of a cache.
template <class T>
int64_t odd_lines(int64_t dim) {
  constexpr int64_t line = 64 / int64_t(sizeof(T));
  return ((dim + line - 1) / line | 1) * line;
}

// Pointers to rows x_i, i = i0 .. i0 + n - 1, in type T: where they lie, or converted into `scratch` [n, odd_lines(dim)].
template <class T>
void row_pointers(const Task& task, int64_t i0, int64_t n, T* scratch, const T** pointers) {
  const int64_t pitch = odd_lines<T>(task.dim);
  with_features<T>(task, [&](auto* features) {
    for (int64_t i = 0; i < n; ++i) {
      auto* x = features + task.rows[i0 + i] * task.dim;
      if constexpr (std::is_same_v<decltype(x), const T*>) {
        pointers[i] = x;
      } else {
        T* z = scratch + i * pitch;
        int64_t c = 0;
        for (; c + kWidth<T> <= task.dim; c += kWidth<T>) store(z + c, load_row<T>(x + c));
        Vec<T> tail = load_row_tail<T>(x + c, task.dim - c);
        for (int64_t j = 0; c + j < task.dim; ++j) z[c + j] = tail[j];
        pointers[i] = z;
      }
    }
  });
}
template <class T>
bool rows_need_scratch(const Task& task) {
  return sizeof(T) == 4 && task.dtype != Dtype::f32;
}
// Pointers to samples z_i, up to a factor scale_i where none is subtracted: centred into `scratch`, or as above.
template <class T>
void sample_pointers(const Task& task, const T* scale, int64_t i0, int64_t n, T* scratch,
                     const T** pointers) {
  if (!centring(task) || task.centred_in_registers) return row_pointers(task, i0, n, scratch, pointers);
  const int64_t pitch = odd_lines<T>(task.dim);
  with_features<T>(task, [&](auto* features) {
    for (int64_t i = 0; i < n; ++i) {
      T* z = scratch + i * pitch;
      centre_row(features + task.rows[i0 + i] * task.dim, scale[i0 + i], static_cast<const T*>(task.mean),
                 task.dim, z);
      pointers[i] = z;
    }
  });
}
template <class T>
bool samples_need_scratch(const Task& task) {
  return (centring(task) && !task.centred_in_registers) || rows_need_scratch<T>(task);
}

}  // namespace TIM_ISA
}  // namespace tim_ext
