// Runs the torch-free core on random tasks, for AddressSanitizer and UndefinedBehaviorSanitizer, or ThreadSanitizer; every
// buffer has exactly the size that the contract names. Also compares the dual form with the primal one where it is float64,
// and ends calls early.
// Usage: driver SEED TASKS
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <thread>
#include <vector>

#include "cpu/core/core.h"

using namespace tim_ext;

namespace {

void run_on_threads(int64_t n, void (*body)(void*, int64_t), void* context) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> ended(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    threads.emplace_back([&, i] {
      try {
        body(context, i);
      } catch (...) {
        ended[size_t(i)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const std::exception_ptr& error : ended)
    if (error) std::rethrow_exception(error);
}

// Ends a call after some pauses, on every thread, as an interrupt does.
struct Stopped {};
struct Stopper {
  std::atomic<int64_t> pauses_left;
  Team asking(Team team) {
    team.pause = [](void* self) {
      if (--static_cast<Stopper*>(self)->pauses_left < 0) throw Stopped();
    };
    team.asked = this;
    return team;
  }
};

struct Result {
  std::vector<char> probs, weights, history, proportions, marginal_weights;
  std::vector<int64_t> predictions, iterations, status;

  Result(int64_t real, int64_t samples, int64_t entries, int64_t classes, int64_t dim, int64_t tasks,
         int64_t terms)
      : probs(size_t(real * entries)),
        weights(size_t(real * classes * dim)),
        history(size_t(real * terms)),
        proportions(size_t(real * classes)),
        marginal_weights(size_t(real * tasks)),
        predictions(static_cast<size_t>(samples)),
        iterations(static_cast<size_t>(tasks)),
        status(static_cast<size_t>(tasks * 3)) {}
  Outputs outputs() {
    Outputs out;
    out.probs = probs.data();
    out.predictions = predictions.data();
    out.weights = weights.data();
    out.iterations = iterations.data();
    out.history = history.data();
    out.proportions = proportions.data();
    out.marginal_weights = marginal_weights.data();
    out.status = status.data();
    return out;
  }
};

int fail(const char* what, int seed) {
  std::fprintf(stderr, "%s (seed %d)\n", what, seed);
  return 1;
}

int run(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  auto noise = [&] { return std::normal_distribution<double>()(random); };
  const int64_t tasks = pick(1, 3), dim = pick(1, pick(0, 3) ? 70 : 700);
  const Dtype dtype = static_cast<Dtype>(pick(0, 3));
  const int64_t real = dtype == Dtype::f64 ? 8 : 4, item = dtype == Dtype::f64   ? 8
                                                           : dtype == Dtype::f32 ? 4
                                                                                 : 2;

  std::vector<int64_t> labels, truth, offsets{0}, classes;
  int64_t entries = 0, all_classes = 0;
  for (int64_t t = 0; t < tasks; ++t) {
    const int64_t K = pick(1, pick(0, 2) ? 7 : 40), queries = pick(0, pick(0, 5) ? 60 : 700);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t shots = pick(1, 4); shots > 0; --shots) labels.push_back(k);
    for (int64_t i = 0; i < queries; ++i) labels.push_back(pick(0, 9) ? kQuery : kPadding);
    std::shuffle(labels.begin() + offsets.back(), labels.end(), random);
    entries += (int64_t(labels.size()) - offsets.back()) * K;
    all_classes += K;
    classes.push_back(K);
    offsets.push_back(int64_t(labels.size()));
  }
  const int64_t samples = int64_t(labels.size());
  std::vector<char> features(size_t(samples * dim * item));
  int64_t zeros = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const bool zero = pick(0, 30) == 0;
    zeros += zero;
    const double size = pick(0, 40) ? 1 : 1e25;
    for (int64_t c = 0; c < dim; ++c) {
      const double value = zero ? 0 : noise() * size;
      const size_t at = size_t(i * dim + c);
      if (dtype == Dtype::f64) reinterpret_cast<double*>(features.data())[at] = value;
      if (dtype == Dtype::f32) reinterpret_cast<float*>(features.data())[at] = float(value);
      if (item == 2) reinterpret_cast<uint16_t*>(features.data())[at] = uint16_t(pick(0, 0x3bff));  // finite
    }
  }
  std::vector<int64_t> rows(labels.size());
  for (auto& row : rows) row = pick(0, samples - 1);
  std::vector<double> prior(static_cast<size_t>(all_classes));
  size_t at = 0;
  for (int64_t K : classes)
    for (int64_t k = 0; k < K; ++k) prior[at++] = 1.0 / double(K);
  std::vector<double> first(size_t(all_classes * dim));
  for (auto& w : first) w = noise() / std::sqrt(double(dim));
  const std::vector<float> first_single(first.begin(), first.end());
  Batch batch;
  batch.dtype = dtype;
  batch.features = features.data();
  batch.pool_rows = samples;
  batch.dim = dim;
  batch.rows = pick(0, 1) ? rows.data() : nullptr;
  batch.labels = labels.data();
  batch.offsets = offsets.data();
  batch.classes = classes.data();
  batch.class_prior = pick(0, 1) ? prior.data() : nullptr;
  if (pick(0, 2) == 0)
    batch.weights = real == 8 ? static_cast<const void*>(first.data()) : first_single.data();
  // Some weights are 0; what is not to be read is not a number.
  std::vector<double> sample_weight(labels.size()), log_prior(static_cast<size_t>(entries));
  for (size_t i = 0; i < labels.size(); ++i)
    sample_weight[i] = labels[i] == kQuery ? double(pick(0, 3)) : std::nan("");
  size_t entry = 0;
  for (int64_t t = 0; t < tasks; ++t)
    for (int64_t i = offsets[size_t(t)]; i < offsets[size_t(t) + 1]; ++i)
      for (int64_t k = 0; k < classes[size_t(t)]; ++k)
        log_prior[entry++] =
            labels[size_t(i)] == kQuery ? (pick(0, 2) ? -std::abs(noise()) : 0) : std::nan("");
  const std::vector<float> sample_weight_single(sample_weight.begin(), sample_weight.end()),
      log_prior_single(log_prior.begin(), log_prior.end());
  if (pick(0, 2) == 0)
    batch.sample_weight =
        real == 8 ? static_cast<const void*>(sample_weight.data()) : sample_weight_single.data();
  if (pick(0, 2) == 0)
    batch.sample_log_prior = real == 8 ? static_cast<const void*>(log_prior.data()) : log_prior_single.data();
  const double lam_0 = batch.sample_log_prior ? (pick(0, 3) ? 0.3 : 20) : 0;
  batch.tasks = tasks;

  const int64_t rounds = pick(0, 4) ? pick(0, 6) : 30;  // more than it takes to decide
  const double reach = pick(0, 1) ? 0 : 0.1 * double(pick(1, 9));
  const int64_t terms_size = tasks * (rounds + 1) * history_terms(batch);
  const bool decides = pick(0, 1) == 1, chooses = pick(0, 2) == 0;
  const Team team = pick(0, 1) ? Team{2, run_on_threads} : Team{1, nullptr};
  const double temperature = pick(0, 4) ? 15 : std::pow(10.0, double(pick(-6, 6)));
  std::vector<Result> results;
  const double beta = pick(0, 3) ? 1.0 : 0.01, tol = pick(0, 1) ? 0 : 1e-3;
  for (Form form : {Form::dual, Form::primal}) {
    AdmParams params;
    params.lam = params.alpha = 0.1;
    params.beta = beta;
    params.temperature = temperature;
    params.marginal_weight = 1;
    params.decides_marginal = decides;
    params.smoothing = reach;
    params.relaxation = 0.7;
    params.sample_prior_weight = lam_0;
    params.chooses_steps = chooses;
    params.iterations = rounds;
    params.tol = tol;
    params.normalize = true;
    params.form = form;
    results.emplace_back(real, samples, entries, all_classes, dim, tasks, terms_size);
    Stopper stopper{{pick(0, 12)}};
    try {
      adm_solve(batch, params, results.back().outputs(), stopper.asking(team));
    } catch (const Stopped&) {
    }
    adm_solve(batch, params, results.back().outputs(), team);
    for (int64_t t = 0; t < tasks; ++t)
      if (results.back().status[size_t(3 * t)] != 0) return fail("a task was refused", seed);
  }
  // In few dimensions, and where a row is there twice, neighbours are equally near but for rounding; over many rounds
  // rounding grows.
  const bool comparable = (reach == 0 || (dim > 4 && !batch.rows && zeros < 2)) && rounds <= 6;
  if (dtype == Dtype::f64 && temperature == 15 && beta == 1 && tol == 0 && comparable)
    for (size_t i = 0; i < results[0].probs.size() / 8; ++i)
      if (std::abs(reinterpret_cast<const double*>(results[0].probs.data())[i] -
                   reinterpret_cast<const double*>(results[1].probs.data())[i]) > 1e-8)
        return fail("the dual and the primal form disagree", seed);
  GdParams gd;
  gd.lam = gd.alpha = 0.1;
  gd.temperature = temperature;
  gd.marginal_weight = 1;
  gd.entropy_order = pick(0, 1) ? 1.0 : 2.0;
  gd.sample_prior_weight = lam_0;
  gd.iterations = rounds;
  gd.lr = 1e-3;
  gd.adam_beta1 = 0.9;
  gd.adam_beta2 = 0.999;
  gd.eps = 1e-8;
  gd.normalize = true;
  results.emplace_back(real, samples, entries, all_classes, dim, tasks, terms_size);
  gd_solve(batch, gd, results.back().outputs(), team);
  std::vector<char> gradient(results[0].weights.size()), terms(size_t(real * tasks * 3)),
      loss(size_t(real * tasks));
  Gradient loss_and_gradient;
  loss_and_gradient.weights = results[0].weights.data();
  loss_and_gradient.gradient = gradient.data();
  loss_and_gradient.terms = terms.data();
  loss_and_gradient.loss = loss.data();
  loss_and_gradient.status = results[0].status.data();
  gd_gradient(batch, gd, loss_and_gradient, team);
  // The halves of an iteration on the first task.
  Batch part = batch;
  part.rows = nullptr;
  part.class_prior = nullptr;
  part.weights = nullptr;
  part.sample_weight = part.sample_log_prior = nullptr;
  part.tasks = 1;
  const size_t n = size_t(offsets[1]), K = size_t(classes[0]), size = size_t(real);
  const size_t lanes = size_t(shard_lanes(offsets[1]));
  std::vector<char> scale(size * n), log_probs(size * lanes * K), before(size * lanes * K), factor(size * K);
  std::vector<char> probs(size * n * K), confidences(size * n);
  std::vector<double> columns(3 * K), scalars(4), sums(K * size_t(dim)), totals(K);
  std::vector<int64_t> predictions(n), status(3);
  for (size_t k = 0; k < K; ++k)
    if (real == 8)
      reinterpret_cast<double*>(factor.data())[k] = 1;
    else
      reinterpret_cast<float*>(factor.data())[k] = 1;
  bool extreme;
  shard_scale(part, true, scale.data(), &extreme, status.data(), team);
  if (status[0]) return fail("a part was refused", seed);
  ShardParams shard;
  shard.temperature = temperature;
  shard.support_weight = 0.1;
  shard.query_weight = 0.2;
  shard.power = pick(0, 1) ? 1.1 : 0.0;
  shard.alpha = 0.1;
  shard.entropy_order = gd.entropy_order;
  shard.terms = pick(0, 1) > 0;
  shard.exact = pick(0, 1) > 0;
  ShardSoftmax<void> softmax;
  const void* const mean = pick(0, 1) ? results[1].weights.data() : nullptr;  // any vector [dim]
  softmax.scale = scale.data();
  softmax.mean = mean;
  softmax.weights = results[1].weights.data();
  softmax.log_probs = log_probs.data();
  softmax.columns = columns.data();
  softmax.scalars = scalars.data();
  for (int round = 0; round < 2; ++round) {
    softmax.before = pick(0, 1) ? before.data() : nullptr;
    shard_softmax(part, shard, softmax, status.data(), team);
  }
  ShardSums<void> weighted;
  weighted.scale = scale.data();
  weighted.mean = mean;
  weighted.log_probs = log_probs.data();
  weighted.factor = factor.data();
  weighted.sums = sums.data();
  weighted.totals = totals.data();
  for (Method method : {Method::adm, Method::gd}) {
    shard.method = method;
    shard_sums(part, shard, weighted, status.data(), team);
  }
  ShardClassify<void> classify;
  classify.scale = scale.data();
  classify.mean = mean;
  classify.weights = results[1].weights.data();
  classify.probs = probs.data();
  classify.predictions = predictions.data();
  classify.confidences = confidences.data();
  shard_classify(part, shard, classify, status.data(), team);
  if (status[0]) return fail("a part was refused", seed);
  for (double value : columns)
    if (std::isnan(value)) return fail("a sum of a part is not a number", seed);

  for (const Result& result : results)
    for (size_t i = 0; i < result.probs.size() / size_t(real); ++i) {
      const double p = real == 8 ? reinterpret_cast<const double*>(result.probs.data())[i]
                                 : double(reinterpret_cast<const float*>(result.probs.data())[i]);
      if (!(p >= 0 && p <= 1.001)) return fail("a probability is not in [0, 1]", seed);
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int first = argc > 1 ? std::atoi(argv[1]) : 0, count = argc > 2 ? std::atoi(argv[2]) : 100;
  for (int seed = first; seed < first + count; ++seed)
    if (run(seed)) return 1;
  std::printf("%d batches on %s\n", count, cpu_capability());
}
