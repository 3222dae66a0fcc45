// The operators of tim_ext: every schema in one place. Kernels live in cpu/ and cuda/, one file
// per operator, and register themselves for their device.
//
// To add a hyper-parameter:
//   1. the schema below; the argument at the same place in common/*_operators.h (shard_*: cpu/shard_*.cpp), where it becomes
//   2. a field of the params in common/problem.h;
//   3. what it changes in common/equations.h: coefficients that the kernels of both devices then have by name;
//   4. the keywords of tests/cuda_emulation/binding.cpp; a value of its own in tests/solver/test_hyper_parameters.py.
// To add an input of the iteration, a tensor: CONTRIBUTING.md has the files.
// To add an operator:
//   1. the schema below; in Python its fake, its backward if it has one, and a sample for opcheck (see its family);
//   2. checks and results in common/*_operators.h, its plain arguments in common/steps.h or problem.h;
//   3. cpu/<name>.cpp and cuda/<name>.cpp, which register it; the work in cpu/core and cpu/kernels (a slot of Kernels, filled by
//      name in table-inl.h) and in cuda/core (declared in core.h);
//   4. the emulation: binding.cpp and the backends of the tests.
// Of those that the CPU alone has (shard_*, and those of the baselines), no part of 2 to 4 that is for CUDA.
//
// A batch of tasks is flat. Sample r of the batch is row `rows[r]` of `features` (row r itself when
// `rows` is absent); task t owns the samples offsets[t] .. offsets[t+1] and has classes[t] classes.
//
//   features  [M, d]   float32, float64, float16 or bfloat16
//   rows      [R]      int64
//   labels    [R]      int64: class of a support sample, -1 query, -100 padding
//   offsets   [T + 1]  int64, on the CPU
//   classes   [T]      int64, on the CPU
//   class_prior [sum_t K_t] float64, on the CPU: class proportions expected among the queries, if known
//   weights   [sum_t K_t, d] of the type that features compute in (float32 for half types): the first W, where it is not the
//             prototypes; such tasks are solved in the primal form
//   sample_weight [R] of that type, finite and >= 0: of every query in every sum over the queries, |Q| being their sum; what
//             stands at other samples is not read
//   sample_log_prior [sum_t N_t K_t] of that type, finite and <= 0, the largest of a sample 0: log prior_ik, laid out as
//             probs; read at queries alone
//   sample_prior_weight: lam_0 > 0 of those priors
//
// Results are flat in the same order: probs [sum_t N_t K_t], weights [sum_t K_t, d], proportions [sum_t K_t], the mean
// of p over the queries of each task. history [T, iterations + 1 or 0, 3], or 4 with sample_log_prior. The caller passes those sizes (so that shapes never depend on data); 0 means "not
// wanted". marginal_weights [T] are those of the last iterations: without a marginal_weight each task decides its own, without
// smoothing its reach, and without relaxation its steps. With roots, a task none of whose features is negative is solved on their square roots (CPU only).
// `status` [T, 3] says whether a task was refused: (code, position in the task, value), code 0 = fine;
// common/status.h lists the codes.

#include "common/torch_abi.h"

STABLE_TORCH_LIBRARY(tim_ext, m) {
  m.def(
      "adm_solve(Tensor features, Tensor? rows, Tensor labels, Tensor offsets, Tensor classes, *, "
      "float lam, float alpha, float beta, float temperature, float? marginal_weight, "
      "float? smoothing, float? relaxation, "
      "int iterations, float tol, bool normalize, str form, "
      "SymInt probs_size, SymInt weights_rows, SymInt proportions_size, bool history, "
      "Tensor? class_prior=None, bool roots=False, Tensor? weights=None, "
      "Tensor? sample_weight=None, Tensor? sample_log_prior=None, float sample_prior_weight=0.0) -> "
      "(Tensor probs, Tensor predictions, Tensor weights, Tensor iterations, Tensor history, "
      "Tensor proportions, Tensor marginal_weights, Tensor status)");

  m.def(
      "gd_solve(Tensor features, Tensor? rows, Tensor labels, Tensor offsets, Tensor classes, *, "
      "float lam, float alpha, float temperature, float marginal_weight, float entropy_order, "
      "int iterations, float lr, float adam_beta1, float adam_beta2, float eps, float tol, "
      "bool normalize, SymInt probs_size, SymInt weights_rows, SymInt proportions_size, bool history, "
      "Tensor? class_prior=None, Tensor? weights=None, "
      "Tensor? sample_weight=None, Tensor? sample_log_prior=None, float sample_prior_weight=0.0) -> "
      "(Tensor probs, Tensor predictions, Tensor weights, Tensor iterations, Tensor history, "
      "Tensor proportions, Tensor marginal_weights, Tensor status)");

  // Instruction set the CPU kernels use: "avx512", "avx2" or "baseline"; "neon" on Arm.
  m.def("cpu_capability() -> str");
  // Multiply-adds per second of all torch threads together, measured for about `seconds`.
  m.def("cpu_peak(float seconds, bool double_precision) -> float");

  // The steps of TIM, for loops of one's own. T tasks of equal shape:
  // features [T, N, d], weights [T, K, d], labels [T, N], the rest [T, N, K]. On the CPU the first three may have any strides
  // (rows of features and weights dense), and features half types; results and weights have the type computed in.
  // The overloads `out` write into tensors of the caller, so that a loop allocates nothing; w_update may replace its weights.
  m.def(
      "distance_softmax(Tensor features, Tensor weights, float temperature) -> "
      "(Tensor probs, Tensor log_probs)");
  m.def(
      "distance_softmax.out(Tensor features, Tensor weights, float temperature, *, Tensor(a!) probs, "
      "Tensor(b!) log_probs) -> ()");
  m.def(
      "q_update(Tensor log_probs, Tensor labels, float alpha, float beta, float marginal_weight) -> "
      "Tensor assignments");
  m.def(
      "q_update.out(Tensor log_probs, Tensor labels, float alpha, float beta, float marginal_weight, *, "
      "Tensor(a!) out) -> ()");
  m.def(
      "w_update(Tensor features, Tensor weights, Tensor probs, Tensor assignments, Tensor labels, "
      "float lam, float alpha, float beta) -> Tensor weights");
  m.def(
      "w_update.out(Tensor features, Tensor weights, Tensor probs, Tensor assignments, Tensor labels, "
      "float lam, float alpha, float beta, *, Tensor(a!) out) -> ()");
  // distance_softmax and gd_gradient can be differentiated by features and weights (tim_ext/solver/gradients.py); the
  // other operators and overloads refuse a tensor that requires a gradient.
  // Loss [T], its terms [T, 3] (cross entropy, marginal entropy, conditional entropy) and dL/dW [T, K, d]. Contiguous tensors
  // of one type.
  m.def(
      "gd_gradient(Tensor features, Tensor weights, Tensor labels, Tensor? class_prior=None, *, float lam, "
      "float alpha, float temperature, float marginal_weight, float entropy_order=1.0) -> "
      "(Tensor loss, Tensor terms, Tensor gradient)");
  m.def(
      "gd_gradient.out(Tensor features, Tensor weights, Tensor labels, Tensor? class_prior=None, *, float "
      "lam, "
      "float alpha, float temperature, float marginal_weight, float entropy_order=1.0, Tensor(a!) loss, "
      "Tensor(b!) terms, Tensor(c!) gradient) -> ()");

  // What tim_ext.baselines does on the CPU, on B tasks padded to one number of samples: rows and labels [B, N]; steps: those of
  // tim_ext/transforms.py, joined by "+". Of a method p comes as [B, K, N], with the weights [B, K, d] that it is computed from.
  // finite [B]: 1 where all features of the task are. samples [B, N, d]: transformed, 0 for padding.
  m.def(
      "gather_tasks(Tensor features, Tensor rows, Tensor labels, str steps, Tensor? base_mean=None) -> "
      "(Tensor samples, Tensor finite)");
  m.def(
      "bd_cspn(Tensor features, Tensor rows, Tensor labels, str steps, Tensor? base_mean, SymInt classes, "
      "float scale, float temperature) -> (Tensor probs, Tensor weights, Tensor finite)");
  m.def(
      "laplacian_shot(Tensor features, Tensor rows, Tensor labels, str steps, Tensor? base_mean, SymInt "
      "classes, bool rectify, float scale, int neighbors, float lam, int iterations, float tol) -> "
      "(Tensor probs, Tensor weights, Tensor finite, Tensor iterations)");
  m.def(
      "pt_map(Tensor features, Tensor rows, Tensor labels, str steps, Tensor? base_mean, SymInt classes, "
      "float lam, float step, int iterations, float tol) -> (Tensor probs, Tensor weights, Tensor finite)");

  // The halves of an iteration on a part of one task, for tim_ext.distributed: the part's samples
  // features [n, d] and labels [n]; weights [K, d]. Sums leave in float64; what they are: cpu/kernels/shard-inl.h.
  // With a mean [d], samples have it subtracted, and weights are W minus it: sums are those of the difference.
  // log_probs and before [ceil(n / 256) * 256 * K] are the caller's memory in the kernels' own order.
  // Row lengths: scale [n], and status [3] as above with value = 1 if rows must be normalised beforehand.
  m.def("shard_scale(Tensor features, Tensor labels, bool normalize) -> (Tensor scale, Tensor status)");
  m.def(
      "shard_softmax(Tensor features, Tensor labels, Tensor scale, Tensor weights, Tensor(a!) log_probs, "
      "Tensor(b!)? before, *, float temperature, float support_weight, float query_weight, float power, "
      "float entropy_order, bool terms, Tensor? mean=None) -> (Tensor columns, Tensor scalars)");
  m.def(
      "shard_adm_sums(Tensor features, Tensor labels, Tensor scale, Tensor log_probs, Tensor factor, *, "
      "float support_weight, float query_weight, float power, bool exact, Tensor? mean=None) -> "
      "(Tensor sums, Tensor totals)");
  m.def(
      "shard_gd_sums(Tensor features, Tensor labels, Tensor scale, Tensor log_probs, Tensor marginal, *, "
      "float support_weight, float query_weight, float alpha, float entropy_order, Tensor? mean=None) -> "
      "(Tensor sums, Tensor totals)");
  // p [n or 0, K], its argmax [n], its largest value [n] and status [3] at given weights.
  m.def(
      "shard_classify(Tensor features, Tensor labels, Tensor scale, Tensor weights, *, float temperature, "
      "bool probs, Tensor? mean=None) -> (Tensor probs, Tensor predictions, Tensor confidences, Tensor "
      "status)");
}
