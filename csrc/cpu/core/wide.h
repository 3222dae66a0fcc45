// Tasks of float32 whose logits are so large that their rounding shows in p: solved in float64.
//
// The logits of a task are tau ||z_i - mean||^2 or so, and float32 rounds them to 6e-8 of that, sums of many products to
// several times as much: from about a hundred on, p is no longer right to 1e-5. Such tasks are rare (a temperature far above
// the usual ones, or long features without normalisation), so that their time matters less than their answer.
#pragma once

#include "cpu/core/batch.h"

namespace tim_ext {

constexpr double kWideLogits = 64;               // tau times the mean of ||z_i - mean||^2
constexpr int64_t kWideCopy = 2 * kCentredCopy;  // bytes of the samples in float64, at most

// Whether to solve a task in float64: by its samples alone, so that neither padding nor the batch matters.
template <class T>
bool is_wide(const Task& task, double temperature, bool normalize, Worker<T>& w) {
  if (sizeof(T) == 8 || task.samples() * task.dim * 8 > kWideCopy) return false;
  const double n = double(task.samples());
  double square = 1, mean = 0;  // of ||z_i||, their mean; and ||mean||^2
  if (normalize) {
    if (temperature <= kWideLogits) return false;
  } else {
    std::vector<T> inverse(w.scale.size());
    int64_t bad;
    kernels<T>().measure_rows(task, true, inverse.data(), &bad);
    square = 0;
    for (T one : inverse) square += one > 0 ? 1 / (double(one) * double(one) * n) : 0.0;
  }
  for (int64_t j = 0; j < task.dim; ++j) mean += double(w.mean[size_t(j)]) * double(w.mean[size_t(j)]);
  return temperature * (square - mean) > kWideLogits;
}

// The task as a batch of its own in float64, solved by solve(batch, outputs), and its results in float32.
template <class Solve>
void solve_wide(const Task& task, int64_t iterations, const TaskOutputs<float>& out, Solve solve) {
  const int64_t N = task.samples(), K = task.classes, d = task.dim;
  // scale_i x_i - mean with scale 1 and mean 0: the rows as float32, whatever type they have
  const std::vector<float> zero(size_t(padded_dim(d)), 0.0f), one(size_t(N), 1.0f);
  Task plain = task;
  plain.mean = zero.data();
  std::vector<float> rows(size_t(N * d));
  kernels<float>().centre_rows(plain, one.data(), rows.data());
  const std::vector<double> features(rows.begin(), rows.end());
  const std::vector<int64_t> labels(task.labels, task.labels + N);
  const float* const first = static_cast<const float*>(task.weights);
  const std::vector<double> first_weights(first, first ? first + K * d : first);
  std::vector<double> sample_weight(task.sample_weight ? size_t(N) : 0);
  for (int64_t i = task.support; i < N && task.sample_weight; ++i)
    sample_weight[size_t(i)] = static_cast<const float*>(task.sample_weight)[task.position[i]];
  std::vector<double> log_prior(task.sample_log_prior ? size_t(N * K) : 0);
  for (int64_t i = task.support; i < N && task.sample_log_prior; ++i)
    std::copy_n(static_cast<const float*>(task.sample_log_prior) + task.position[i] * K, K,
                &log_prior[size_t(i * K)]);
  const int64_t offsets[2] = {0, N}, classes[1] = {K};
  Batch batch;
  batch.dtype = Dtype::f64;
  batch.features = features.data();
  batch.pool_rows = N;
  batch.dim = d;
  batch.labels = labels.data();
  batch.offsets = offsets;
  batch.classes = classes;
  batch.class_prior = task.class_prior;
  batch.weights = first ? first_weights.data() : nullptr;
  batch.sample_weight = task.sample_weight ? sample_weight.data() : nullptr;
  batch.sample_log_prior = task.sample_log_prior ? log_prior.data() : nullptr;
  batch.tasks = 1;

  std::vector<double> probs(out.probs ? size_t(N * K) : 0), weights(out.weights ? size_t(K * d) : 0),
      history(out.history ? size_t(history_terms(batch) * (iterations + 1)) : 0);
  std::vector<double> proportions(out.proportions ? size_t(K) : 0);
  std::vector<int64_t> predictions(size_t(N), 0);
  double marginal_weight;
  int64_t status[3];
  Outputs found;
  found.probs = out.probs ? probs.data() : nullptr;
  found.predictions = predictions.data();
  found.weights = out.weights ? weights.data() : nullptr;
  found.iterations = out.iterations;
  found.history = out.history ? history.data() : nullptr;
  found.proportions = out.proportions ? proportions.data() : nullptr;
  found.marginal_weights = &marginal_weight;
  found.status = status;
  solve(batch, found);

  for (int64_t i = 0; i < N; ++i) {
    const int64_t where = task.position[i];
    out.predictions[where] = predictions[size_t(i)];
    if (out.probs)
      for (int64_t k = 0; k < K; ++k) out.probs[where * K + k] = float(probs[size_t(i * K + k)]);
  }
  for (size_t j = 0; j < weights.size(); ++j) out.weights[j] = float(weights[j]);
  for (size_t j = 0; j < history.size(); ++j) out.history[j] = float(history[j]);
  for (size_t j = 0; j < proportions.size(); ++j) out.proportions[j] = float(proportions[j]);
  *out.marginal_weight = float(marginal_weight);
  std::copy_n(status, 3, out.status);
}

}  // namespace tim_ext
