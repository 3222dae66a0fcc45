// The two forms of a solver on one task, and the iterations of TIM-ADM on either.
//
//   dual    w_k = sum_i C_ik z_i; state C [N, K], everything else from G = Z Z^T
//   primal  W [K, d] explicit; two passes over the features per iteration
// z_i and w_k are those of the task minus its mean (Problem::mean): distances are the same.
//
// A form provides  product(t): log_p = z_i . (w_k - w_K) and shift, after t updates;  update(): the next W from p, target,
// step, stay;  kTakesInputs: whether tasks may have SampleInputs.
// Both end with a barrier, and both begin by reading only what an earlier barrier has made visible, or what the same thread
// wrote for its samples.
#pragma once

#include "cuda/core/updates.cuh"

namespace tim_ext {
namespace cuda {

// Distance of the rows of arrays over N samples: whole vectors, and not a multiple of the 32 banks of shared memory.
__host__ __device__ constexpr int64_t leading(int64_t N) { return round_up(N, 16) + 4; }

// The arrays that both forms need, for up to N samples.
template <class T>
__host__ __device__ TaskArrays<T> take_arrays(Arena& arena, int64_t N, int K) {
  TaskArrays<T> a{};
  a.K = K;
  a.ld = leading(N);
  a.of_samples = arena.take_equal<T>(3, K * a.ld, &a.samples_stride);
  a.of_classes = arena.take_equal<T>(6, K, &a.classes_stride);
  a.moved = arena.take<unsigned>(2);
  return a;
}
template <class T>
__device__ void bind_task(TaskArrays<T>& a, const Problem<T>& problem, const TaskEntry& task,
                          const TaskSamples& samples) {
  a.n = samples.count;
  a.support = samples.support;
  a.label = problem.label + task.first_sample;
  a.support_count = problem.support_count + task.first_class;
  a.log_priors = problem.log_priors ? problem.log_priors + task.first_class : nullptr;
}

// TIM-ADM; returns the number of updates made. p then belongs to the last W.
template <class T, class Form>
__device__ int64_t adm_iterate(Team& team, const TaskArrays<T>& a, const AdmWeights<T>& c, Form& form,
                               const Problem<T>& problem, const TaskEntry& task) {
  constexpr bool taken = Form::kTakesInputs;
  const int terms = taken ? problem.history_terms : 3;
  const int64_t planned = has_queries<taken>(problem, task, a.queries()) ? c.iterations : 0;
  auto given = [&](auto f) { with_inputs<taken>(problem, task, a.n, c.in_log_p, f); };
  for (int64_t t = 0;; ++t) {
    const bool compare = c.tol > 0 && t > 0;
    form.product(t);
    softmax_rows(team, a, c.tau, compare, c.tol, a.moved + t % 2);
    given([&](const auto& in) { add_priors(team, a, in); });
    TIM_SYNC(team);
    const bool decided = !c.decides_marginal || t > kDecidedAfter;
    const bool stop = t == planned || (compare && decided && a.moved[t % 2] == 0);
    if (stop && problem.history == nullptr) return t;
    if (team.thread() == 0) a.moved[(t + 1) % 2] = 0;
    if (c.decides_marginal && !stop && decides_marginal_at(t)) {
      given([&](const auto& in) {
        for (int k = team.warp(); k < a.K; k += team.warps()) {
          const T sum = query_sum(a, k, in);
          if (lane_id() == 0) a.query_p()[k] = sum;
        }
      });
      TIM_SYNC(team);
      if (team.thread() == 0)
        problem.marginal_weights[task.task] = marginal_weight_from(t, decide_marginal(a));
      TIM_SYNC(team);  // adm_class_sums writes query_p anew
    }
    given([&](const auto& in) { adm_class_sums(team, a, c, problem, task, in); });
    TIM_SYNC(team);
    if (problem.history != nullptr && team.warp() == 0)
      given([&](const auto& in) { write_terms(a, T(1), history_of(problem, task, terms) + terms * t, in); });
    if (stop) return t;
    adm_target_rows(team, a, c);
    TIM_SYNC(team);
    given([&](const auto& in) { adm_class_steps(team, a, c, in); });
    TIM_SYNC(team);
    given([&](const auto& in) { weigh_targets(team, a, in); });
    form.update();
  }
}

// The dual state: C as differences to the last class, D_ik = C_ik - C_iK, k < K - 1, and C_K.
template <class T>
struct DualState {
  T* difference;  // grouped by four classes: see grouped()
  T* last;        // [ld]
};
template <class T>
__host__ __device__ DualState<T> take_dual(Arena& arena, int64_t ld, int K) {
  T* difference = arena.take<T>(grouped_size(K, ld));
  return {difference, arena.take<T>(ld)};
}

// C_ik = y_ik / |S_k|: the prototypes. Samples beyond n weigh nothing.
template <class T>
__device__ void dual_start(const Team& team, const TaskArrays<T>& a, const DualState<T>& s) {
  for (int64_t i = team.thread(); i < a.ld; i += team.threads()) {
    const int label = i < a.n ? a.label[i] : int(kPadding);
    const T share = label >= 0 ? T(1) / T(a.support_count[label]) : T(0);
    const T last = label == a.K - 1 ? share : T(0);
    s.last[i] = last;
    for (int64_t k = 0; k < round_up(a.K, 8); ++k)
      s.difference[grouped(i, k, a.ld)] = k < a.K - 1 ? (label == k ? share : T(0)) - last : T(0);
  }
  if (team.thread() < 2) a.moved[team.thread()] = 0;
}

// shift_k = tau/2 U_k . (C_k + C_K), U_k = G (C_k - C_K) in log_p.
template <class T>
__device__ void dual_shift(const Team& team, const TaskArrays<T>& a, const DualState<T>& s, T tau) {
  const int lane = lane_id();
  for (int k = team.warp(); k < a.K - 1; k += team.warps()) {
    T sum = 0;
#pragma unroll 4
    for (int i = lane; i < a.n; i += kLanes)
      sum += a.log_p(k)[i] * (s.difference[grouped(i, k, a.ld)] + T(2) * s.last[i]);
    sum = warp_sum(sum);
    if (lane == 0) a.shift()[k] = tau / 2 * sum;
  }
}

// C_ik <- (X_ik + B_k C_ik) / D_k,  X_ik = c_i (target_ik - p_ik), into `next`, which may be C itself.
template <class T>
__device__ void dual_update(const Team& team, const TaskArrays<T>& a, const DualState<T>& s,
                            const DualState<T>& next, T support_weight) {
  const T query_weight = a.c_query();
  for (int i = team.thread(); i < a.n; i += team.threads()) {
    const T weight = a.is_query(i) ? query_weight : support_weight;
    auto x = [&](int k) { return weight * (a.target(k)[i] - a.p(k)[i]); };
    const T before = s.last[i], now = x(a.K - 1) * a.step()[a.K - 1] + before * a.stay()[a.K - 1];
    next.last[i] = now;
#pragma unroll 4
    for (int k = 0; k < a.K - 1; ++k) {
      const T d = s.difference[grouped(i, k, a.ld)];
      next.difference[grouped(i, k, a.ld)] = x(k) * a.step()[k] + (d + before) * a.stay()[k] - now;
    }
  }
}

// C itself in `whole`, where differences were: for W = C^T Z.
template <class T>
__device__ void dual_finish(const Team& team, const TaskArrays<T>& a, const DualState<T>& s,
                            const DualState<T>& whole) {
  for (int i = team.thread(); i < a.n; i += team.threads()) {
#pragma unroll 4
    for (int k = 0; k < a.K - 1; ++k)
      whole.difference[grouped(i, k, a.ld)] = s.difference[grouped(i, k, a.ld)] + s.last[i];
    whole.difference[grouped(i, a.K - 1, a.ld)] = s.last[i];
  }
}

// The samples as a matrix Z [n][pitch] of type T, centred and 0 beyond dim: read many times, and each time without
// conversion, scaling or a look-up of rows.
template <class T>
__device__ void copy_rows(const Team& team, const FeatureRows<T>& rows, int n, T* z, int64_t pitch) {
  const int lane = lane_id();
  for (int i = team.warp(); i < n; i += team.warps())
    for (int64_t c = lane * kVector<T>; c < pitch; c += kLanes * kVector<T>) {
      T v[kVector<T>];
      rows.load(i, c, v);
      store_vector(z + i * pitch + c, v);
    }
}

// W, V = w_k - w_K and shift; the passes of the primal form.
template <class T>
struct PrimalState {
  int64_t dim, pitch;  // pitch of rows of Z, W and V, which are 0 beyond dim
  T* z;                // [N][pitch]
  T* weights;          // [K][pitch]
  T* difference;       // [K - 1][pitch]
  T* x;                // weights of the samples, grouped by four classes
  T* sliced;           // partial sums of large tasks

  __device__ MatrixRows<T> rows() const { return {z, pitch, pitch}; }
};
template <class T>
__host__ __device__ PrimalState<T> take_primal(Arena& arena, int64_t N, int64_t ld, int K, int64_t dim) {
  const int64_t pitch = round_up(dim, kVector<T>);
  T* z = arena.take<T>(N * pitch);
  T* weights = arena.take<T>(K * pitch);
  T* difference = arena.take<T>(K * pitch);
  T* x = arena.take<T>(grouped_size(K, ld));
  return {dim,
          pitch,
          z,
          weights,
          difference,
          x,
          slices_of(N) > 1 ? arena.take<T>(slices_of(N) * K * dim) : nullptr};
}

// Z; a barrier must follow before any of it is read.
template <class T>
__device__ void primal_start(const Team& team, const TaskArrays<T>& a, const PrimalState<T>& s,
                             const FeatureRows<T>& rows) {
  copy_rows(team, rows, a.n, s.z, s.pitch);
  if (team.thread() < 2) a.moved[team.thread()] = 0;
  for (int i = team.thread(); i < a.n; i += team.threads())
    for (int k = a.K; k < round_up(a.K, 8); ++k) s.x[grouped(i, k, a.ld)] = T(0);
}
// W = the prototypes of Z, or the weights given.
template <class T>
__device__ void first_weights(Team& team, const TaskArrays<T>& a, const PrimalState<T>& s, const T* mean,
                              const T* given) {
  for (int64_t j = team.thread(); j < a.K * s.pitch; j += team.threads()) {
    const int k = int(j / s.pitch);
    const int64_t c = j % s.pitch;
    T w = 0;
    if (given != nullptr) {
      if (c < s.dim) w = given[k * s.dim + c] - mean[c];
    } else {
      for (int i = 0; i < a.n; ++i)
        if (a.label[i] == k) w += s.z[i * s.pitch + c];
      w /= T(a.support_count[k]);
    }
    s.weights[j] = w;
  }
  TIM_SYNC(team);
}

// V_k = w_k - w_K, shift_k = tau/2 V_k . (w_k + w_K); then log_p = z_i . V_k.
template <class T>
__device__ void primal_product(Team& team, const TaskArrays<T>& a, const PrimalState<T>& s, T tau) {
  const int lane = lane_id();
  const T* const last = s.weights + (a.K - 1) * s.pitch;
  for (int k = team.warp(); k < a.K - 1; k += team.warps()) {
    T sum = 0;
    for (int64_t c = lane; c < s.pitch; c += kLanes) {
      const T w = s.weights[k * s.pitch + c], v = w - last[c];
      s.difference[k * s.pitch + c] = v;
      sum += v * (w + last[c]);
    }
    sum = warp_sum(sum);
    if (lane == 0) a.shift()[k] = tau / 2 * sum;
  }
  TIM_SYNC(team);
  dot_rows<T>(team, s.rows(), a.n, s.pitch, MatrixRows<T>{s.difference, s.pitch, s.pitch}, a.K - 1,
              [&](int k, int i, T value) { a.log_p(k)[i] = value; });
  TIM_SYNC(team);
}

// W to where the caller wants it, if he does.
template <class T>
__device__ void primal_finish(const Team& team, const PrimalState<T>& s, const Problem<T>& problem,
                              const TaskEntry& task) {
  if (problem.weights == nullptr) return;
  T* const out = problem.weights + task.first_class * problem.dim;
  const T* const mean = mean_of(problem, task);
  for (int64_t j = team.thread(); j < task.classes * s.dim; j += team.threads())
    out[j] = s.weights[j / s.dim * s.pitch + j % s.dim] + mean[j % s.dim];
}

// Memory and tasks of a kernel whose blocks take one task after the other, or all work on one.
struct Slots {
  unsigned char* memory;  // a slot for each block, or one for the team
  int64_t bytes;          // of a slot
  int first, count;       // of the table
  unsigned* next;         // number of tasks taken
  unsigned* arrived;      // of a team's blocks, else null
};

// solve(team, task, samples, memory) for the tasks of this block or team that are not refused.
template <class T, class Solve>
__device__ void for_tasks(const Problem<T>& problem, const Slots& slots, int* shared_number, Solve solve) {
  const bool teamed = slots.arrived != nullptr;
  Team team{teamed ? int(blockIdx.x) : 0, teamed ? int(gridDim.x) : 1, slots.arrived, 0};
  unsigned char* const memory = teamed ? slots.memory : slots.memory + blockIdx.x * slots.bytes;
  if (threadIdx.x == 0) *shared_number = -1;
  for (;;) {  // one call of solve, so that a team runs the very code that a block runs
    if (threadIdx.x == 0) {
      *shared_number = teamed ? *shared_number + 1 : int(atomicAdd(slots.next, 1u));
      if (!teamed) permit(memory, slots.bytes);
    }
    __syncthreads();
    const int number = *shared_number;
    __syncthreads();
    if (number >= slots.count) return;
    const TaskSamples samples = problem.samples[slots.first + number];
    if (!samples.refused) solve(team, problem.table[slots.first + number], samples, memory);
  }
}

}  // namespace cuda
}  // namespace tim_ext
