// TIM-ADM. Three kernels, each of which keeps a task on a block (or team of blocks) from the first iteration to the
// last:
//
//   adm_registers_kernel  dual, N <= 128, float32, steps as given, no smoothing, nothing given for single samples: G in
//                         registers, all else in shared memory
//   adm_dual_kernel       dual, any N: G in shared memory where it fits, else in global memory (L2)
//   adm_primal_kernel     primal
#pragma once

#include "cuda/core/chosen_steps.cuh"
#include "cuda/core/smoothing.cuh"

namespace tim_ext {
namespace cuda {

// G in registers -----------------------------------------------------------------------------------
//
// Thread (y, x) of 16 x 16 holds G for rows y + 16 r and columns x + 16 c, r, c < Tile, as gram_tile left it. A product
// with four columns of C: Tile 16-byte loads, 4 Tile^2 multiply-adds, and 4 Tile sums over the 16 threads of a
// row, which are half a warp: 30 shuffles (15 for Tile <= 4). No partial sum goes through memory.

template <int Tile>
struct RegisterForm {
  static constexpr bool kTakesInputs = false;
  float (&g)[Tile][Tile];
  Team& team;
  const TaskArrays<float>& a;
  const DualState<float>& s;
  const AdmWeights<float>& c;

  __device__ __forceinline__ void product(int64_t) {
    constexpr int sums = Tile <= 4 ? 16 : 32;
    const int y = int(threadIdx.x) / 16, x = int(threadIdx.x) % 16;
    for (int k0 = 0; k0 < a.K - 1; k0 += 4) {
      float sum[sums];  // (r, k) at 4 r + k
#pragma unroll
      for (int j = 0; j < sums; ++j) sum[j] = 0;
#pragma unroll
      for (int column = 0; column < Tile; ++column) {
        float d[4];
        load_four(s.difference + grouped(x + 16 * column, k0, a.ld), d);
#pragma unroll
        for (int r = 0; r < Tile; ++r)
#pragma unroll
          for (int k = 0; k < 4; ++k) sum[4 * r + k] += g[r][column] * d[k];
      }
      halve<sums>(sum, x, 8);
      halve<sums / 2>(sum, x, 4);
      halve<sums / 4>(sum, x, 2);
      halve<sums / 8>(sum, x, 1);
      // What is left belongs to the sums numbered sums / 16 * x, ...
#pragma unroll
      for (int j = 0; j < sums / 16; ++j) {
        const int number = sums / 16 * x + j, r = number / 4, k = k0 + number % 4;
        if (r < Tile && k < a.K - 1) a.log_p(k)[y + 16 * r] = sum[j];
      }
    }
    TIM_SYNC(team);
    dual_shift(team, a, s, c.tau);
    TIM_SYNC(team);
  }
  __device__ __forceinline__ void update() {
    dual_update(team, a, s, s, c.support);
    TIM_SYNC(team);
  }
};

// Shared memory: first what is needed before and after the iterations, the stages of the Gram product and the
// partial sums of W; then the state.
template <int Tile>
struct RegisterMemory {
  float* scratch;
  int* label;
  TaskArrays<float> a;
  DualState<float> s;
  int64_t bytes;
};
template <int Tile>
__host__ __device__ RegisterMemory<Tile> take_register_memory(void* start, int K) {
  constexpr int partial = kPartial<float> / 2;  // four classes at a time
  Arena arena(start);
  RegisterMemory<Tile> m{};
  m.scratch = arena.take<float>(gram_stage<Tile, true>() > partial ? gram_stage<Tile, true>() : partial);
  m.label = arena.take<int>(16 * Tile);
  m.a = take_arrays<float>(arena, 16 * Tile, K);
  m.s = take_dual<float>(arena, m.a.ld, K);
  m.bytes = arena.used();
  return m;
}

template <int Tile>
__global__ void __launch_bounds__(kThreads, 2)
    adm_registers_kernel(Problem<float> problem, AdmWeights<float> c, int first) {
  TIM_SHARED_MEMORY(memory);
  const TaskSamples samples = problem.samples[first + blockIdx.x];
  if (samples.refused) return;
  const TaskEntry& task = problem.table[first + blockIdx.x];  // no copy: all registers are in use
  RegisterMemory<Tile> m = take_register_memory<Tile>(memory, task.classes);
  bind_task(m.a, problem, task, samples);
  Team team{0, 1, nullptr, 0};
  for (int i = int(threadIdx.x); i < m.a.n; i += kThreads) m.label[i] = m.a.label[i];
  m.a.label = m.label;

  const FeatureRows<float> rows = rows_of(problem, task);
  float g[Tile][Tile];
  gram_tile<Tile, true>(rows, rows, m.a.n, 0, 0, problem.dim, m.scratch, g);
  dual_start(team, m.a, m.s);
  TIM_SYNC(team);

  RegisterForm<Tile> form{g, team, m.a, m.s, c};
  const int64_t iterations = adm_iterate(team, m.a, c, form, problem, task);
  write_results<false>(team, m.a, problem, task, iterations);
  if (problem.weights == nullptr) return;
  dual_finish(team, m.a, m.s, m.s);
  TIM_SYNC(team);
  float* const weights = problem.weights + task.first_class * problem.dim;
  const float* const mean = mean_of(problem, task);
  const GroupedWeights<float> coefficients{m.s.difference, m.a.ld};
  accumulate_columns_by<4>(
      team, rows, m.a.n, problem.dim, coefficients, task.classes, m.scratch, 1, static_cast<float*>(nullptr),
      [&](int k, int64_t column, float sum) { weights[k * problem.dim + column] = sum + mean[column]; });
}

// G in memory --------------------------------------------------------------------------------------

template <class T>
struct DualForm {
  static constexpr bool kTakesInputs = true;
  const T* gram;  // [n][ld]
  Team& team;
  const TaskArrays<T>& a;
  const DualState<T>& s;
  const AdmWeights<T>& c;
  T *partial, *sliced;
  DualSteps<T>* steps;

  // U_k = G (C_k - C_K): G is symmetric, so its rows are the samples to sum over, its columns the results. Where the task
  // chooses its steps, R has the place of C, and C moves before U is known.
  __device__ void product(int64_t t) {
    accumulate_columns(team, MatrixRows<T>{gram, a.ld, round_up(a.n, kVector<T>)}, a.n, int64_t(a.n),
                       s.difference, a.ld, a.K - 1, partial, sliced,
                       [&](int k, int64_t i, T sum) { a.log_p(k)[i] = sum; });
    TIM_SYNC(team);
    if (c.chooses_steps) dual_move(team, a, s, t == 0, *steps);
    dual_shift(team, a, point(), c.tau);
    TIM_SYNC(team);
  }
  __device__ void update() {
    dual_update(team, a, point(), s, c.support);
    TIM_SYNC(team);
  }
  __device__ DualState<T> point() const { return c.chooses_steps ? steps->point() : s; }  // C
};

template <class T>
struct DualMemory {
  TaskArrays<T> a;
  DualState<T> s;
  int64_t pitch;
  T *z, *sliced, *gram;  // Z [N][pitch]
  GramSmoothing<T> smoothing;
  DualStepsMemory<T> steps;
  int64_t bytes;
};
template <class T, class Params>
__host__ __device__ DualMemory<T> take_dual_memory(void* start, int64_t N, int K, int64_t dim, bool with_gram,
                                                   const Params& params) {
  Arena arena(start);
  DualMemory<T> m{};
  m.a = take_arrays<T>(arena, N, K);
  m.s = take_dual<T>(arena, m.a.ld, K);
  m.pitch = round_up(dim, kVector<T>);
  m.z = arena.take<T>(N * m.pitch);
  m.sliced = slices_of(N) > 1 ? arena.take<T>(slices_of(N) * K * (N > dim ? N : dim)) : nullptr;
  m.gram = with_gram ? arena.take<T>(N * m.a.ld) : nullptr;
  if (smooths(params)) m.smoothing = take_gram_smoothing<T>(arena, N, m.a.ld);
  if (params.chooses_steps) m.steps = take_dual_steps<T>(arena, N, m.a.ld, K);
  m.bytes = round_up(arena.used(), 256);
  return m;
}
template <class T>
struct DualShared {
  T* scratch;
  int* number;
  DualSteps<T>* steps;
  T* gram;
  int64_t bytes;
};
template <class T>
__host__ __device__ DualShared<T> take_dual_shared(void* start, int64_t gram_samples) {
  constexpr int stage = gram_stage<kGramTile, false>();
  Arena arena(start);
  DualShared<T> m{};
  m.scratch = arena.take<T>(stage > kPartial<T> ? stage : kPartial<T>);
  m.number = arena.take<int>(1);
  m.steps = arena.take<DualSteps<T>>(1);
  m.gram = gram_samples > 0 ? arena.take<T>(gram_samples * leading(gram_samples)) : nullptr;
  m.bytes = arena.used();
  return m;
}

// gram_samples: the largest N of these tasks if G is to be in shared memory, else 0.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    adm_dual_kernel(Problem<T> problem, AdmWeights<T> c, Slots slots, int64_t gram_samples) {
  TIM_SHARED_MEMORY(memory);
  const DualShared<T> shared = take_dual_shared<T>(memory, gram_samples);
  for_tasks(problem, slots, shared.number,
            [&](Team& team, const TaskEntry& task, const TaskSamples& samples, void* slot) {
              const bool smooth = smooths(c);
              DualMemory<T> m =
                  take_dual_memory<T>(slot, task.samples, task.classes, problem.dim, gram_samples == 0, c);
              bind_task(m.a, problem, task, samples);
              if (smooth) keep_reach(team, m.a, c, m.smoothing.graph);
              T* const gram = gram_samples > 0 ? shared.gram : m.gram;
              const MatrixRows<T> rows{m.z, m.pitch, m.pitch};
              copy_rows(team, rows_of(problem, task), m.a.n, m.z, m.pitch);
              if (smooth)
                measure_samples(team, m.z, m.a.n, m.pitch, mean_of(problem, task), m.smoothing.graph);
              dual_start(team, m.a, m.s);
              if (c.chooses_steps) start_dual_steps(team, m.a, c, m.steps, shared.steps);
              TIM_SYNC(team);
              gram_matrix<kGramTile>(team, rows, m.a.n, m.pitch, shared.scratch, gram, m.a.ld);
              TIM_SYNC(team);
              if (smooth)
                smooth_gram(team, m.a, mean_of(problem, task), m.pitch, shared.scratch, gram, m.smoothing);
              DualForm<T> form{gram, team, m.a, m.s, c, shared.scratch, m.sliced, shared.steps};
              const int64_t iterations = adm_iterate(team, m.a, c, form, problem, task);
              write_results<true>(team, m.a, problem, task, iterations);
              if (problem.weights == nullptr) return;
              dual_finish(team, m.a, form.point(), m.s);
              TIM_SYNC(team);
              if (smooth) unsmooth(team, m.a, m.s, m.smoothing, shared.scratch, m.sliced);
              T* const weights = problem.weights + task.first_class * problem.dim;
              const T* const mean = mean_of(problem, task);
              accumulate_columns(team, rows, m.a.n, problem.dim, m.s.difference, m.a.ld, task.classes,
                                 shared.scratch, m.sliced, [&](int k, int64_t column, T sum) {
                                   const T share = smooth ? m.a.shift()[k] : T(1);
                                   weights[k * problem.dim + column] = sum + share * mean[column];
                                 });
            });
}

// W explicit ---------------------------------------------------------------------------------------

template <class T>
struct AdmPrimalForm {
  static constexpr bool kTakesInputs = true;
  Team& team;
  const TaskArrays<T>& a;
  const PrimalState<T>& s;
  const AdmWeights<T>& c;
  T* partial;
  PrimalSteps<T>* steps;

  __device__ void product(int64_t) { primal_product(team, a, s, c.tau); }
  // w_k <- (sum_i X_ik z_i + B_k w_k) / D_k, or the residual there
  __device__ void update() {
    const T query_weight = a.c_query();
    for (int i = team.thread(); i < a.n; i += team.threads()) {
      const T weight = a.is_query(i) ? query_weight : c.support;
      for (int k = 0; k < a.K; ++k) s.x[grouped(i, k, a.ld)] = weight * (a.target(k)[i] - a.p(k)[i]);
    }
    TIM_SYNC(team);
    accumulate_columns(team, s.rows(), a.n, s.dim, s.x, a.ld, a.K, partial, s.sliced,
                       [&](int k, int64_t column, T sum) {
                         const int64_t at = k * s.pitch + column;
                         (c.chooses_steps ? steps->residual : s.weights)[at] =
                             sum * a.step()[k] + s.weights[at] * a.stay()[k];
                       });
    TIM_SYNC(team);
    if (c.chooses_steps) primal_move(team, a, s, *steps);
  }
};

template <class T>
struct AdmPrimalMemory {
  TaskArrays<T> a;
  PrimalState<T> s;
  RowSmoothing<T> smoothing;
  PrimalStepsMemory<T> steps;
  int64_t bytes;
};
template <class T, class Params>
__host__ __device__ AdmPrimalMemory<T> take_adm_primal_memory(void* start, int64_t N, int K, int64_t dim,
                                                              const Params& params) {
  Arena arena(start);
  AdmPrimalMemory<T> m{};
  m.a = take_arrays<T>(arena, N, K);
  m.s = take_primal<T>(arena, N, m.a.ld, K, dim);
  if (smooths(params)) m.smoothing = take_row_smoothing<T>(arena, N, m.s.pitch);
  if (params.chooses_steps) m.steps = take_primal_steps<T>(arena, K, m.s.pitch);
  m.bytes = round_up(arena.used(), 256);
  return m;
}
template <class T>
struct PrimalShared {
  T* partial;
  int* number;
  PrimalSteps<T>* steps;  // of TIM-ADM
  int64_t bytes;
};
template <class T>
__host__ __device__ PrimalShared<T> take_primal_shared(void* start) {
  Arena arena(start);
  PrimalShared<T> m{};
  static_assert(gram_stage<kGramTile, false>() <= kPartial<T>, "smoothing has tiles of G there");
  m.partial = arena.take<T>(kPartial<T>);
  m.number = arena.take<int>(1);
  m.steps = arena.take<PrimalSteps<T>>(1);
  m.bytes = arena.used();
  return m;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    adm_primal_kernel(Problem<T> problem, AdmWeights<T> c, Slots slots) {
  TIM_SHARED_MEMORY(memory);
  const PrimalShared<T> shared = take_primal_shared<T>(memory);
  for_tasks(problem, slots, shared.number,
            [&](Team& team, const TaskEntry& task, const TaskSamples& samples, void* slot) {
              const bool smooth = smooths(c);
              AdmPrimalMemory<T> m =
                  take_adm_primal_memory<T>(slot, task.samples, task.classes, problem.dim, c);
              bind_task(m.a, problem, task, samples);
              if (smooth) keep_reach(team, m.a, c, m.smoothing.graph);
              T* const mean = mean_of(problem, task);
              primal_start(team, m.a, m.s, rows_of(problem, task));
              if (c.chooses_steps) start_primal_steps(team, m.a, c, m.s.pitch, m.steps, shared.steps);
              if (smooth) {
                measure_samples(team, m.s.z, m.a.n, m.s.pitch, mean, m.smoothing.graph);
                start_steps(team, m.s.z, m.a.n, m.s.pitch, m.smoothing);
              }
              TIM_SYNC(team);
              if (smooth) smooth_rows(team, m.a, mean, m.s.pitch, shared.partial, m.s.z, m.smoothing);
              if (smooth && problem.start != nullptr) TIM_SYNC(team);  // first_weights reads the new mean
              first_weights(team, m.a, m.s, mean, start_of(problem, task));
              AdmPrimalForm<T> form{team, m.a, m.s, c, shared.partial, shared.steps};
              const int64_t iterations = adm_iterate(team, m.a, c, form, problem, task);
              write_results<true>(team, m.a, problem, task, iterations);
              primal_finish(team, m.s, problem, task);
            });
}

}  // namespace cuda
}  // namespace tim_ext
