// Solves made-up tasks and parts of tasks, and writes what comes out as float64 to standard output, so that two builds of the
// core can be compared. The inputs are the same bits on every machine.
#include <cstdio>
#include <vector>

#include "cpu/core/core.h"

using namespace tim_ext;

namespace {

constexpr int64_t kSamples = 523, kDim = 45, kClasses = 7, kShots = 3;

// Uniform in [-1, 1), with so few bits that every type holds it.
double next(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return double(int64_t(state >> 56) - 128) / 128;
}

uint16_t half_bits(double value) {  // of a multiple of 1/128 below 2
  const uint16_t sign = value < 0 ? 0x8000 : 0;
  int64_t units = int64_t((value < 0 ? -value : value) * 128);
  if (!units) return sign;
  int64_t exponent = 15 + 3;  // of 2^10 units
  while (units < 1024) {
    units *= 2;
    --exponent;
  }
  return static_cast<uint16_t>(sign | (exponent << 10) | (units - 1024));
}

template <class T>
void print(const std::vector<T>& values) {
  for (T value : values) {
    const double wide = double(value);
    std::fwrite(&wide, sizeof(wide), 1, stdout);
  }
}

template <class T>
void solve(Dtype dtype, Form form) {
  uint64_t state = 1;
  std::vector<double> numbers(kSamples * kDim), means(kClasses * kDim);
  for (double& m : means) m = next(state) / 2;
  for (int64_t i = 0; i < kSamples; ++i)
    for (int64_t c = 0; c < kDim; ++c)
      numbers[size_t(i * kDim + c)] =
          double(int64_t((next(state) + means[size_t(i % kClasses * kDim + c)]) * 128)) / 128;
  const std::vector<T> real(numbers.begin(), numbers.end());
  std::vector<uint16_t> half;
  for (double value : numbers) half.push_back(half_bits(value));
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < kSamples; ++i) labels.push_back(i < kShots * kClasses ? i % kClasses : kQuery);
  const int64_t offsets[2] = {0, kSamples}, classes[1] = {kClasses};
  Batch batch;
  batch.dtype = dtype;
  batch.features =
      dtype == Dtype::f16 ? static_cast<const void*>(half.data()) : static_cast<const void*>(real.data());
  batch.pool_rows = kSamples;
  batch.dim = kDim;
  batch.labels = labels.data();
  batch.offsets = offsets;
  batch.classes = classes;
  batch.tasks = 1;
  std::vector<T> probs(kSamples * kClasses), weights(kClasses * kDim), proportions(kClasses), marginal(1);
  std::vector<int64_t> predictions(kSamples), iterations(1), status(3);
  Outputs out;
  out.probs = probs.data();
  out.predictions = predictions.data();
  out.weights = weights.data();
  out.proportions = proportions.data();
  out.marginal_weights = marginal.data();
  out.iterations = iterations.data();
  out.status = status.data();
  const Team alone{1, nullptr};

  AdmParams adm;
  adm.lam = adm.alpha = 0.1;
  adm.beta = adm.marginal_weight = adm.relaxation = 1;
  adm.temperature = 15;
  adm.iterations = 20;
  adm.normalize = true;
  adm.form = form;
  adm_solve(batch, adm, out, alone);
  print(probs);
  print(weights);

  GdParams gd;
  gd.lam = gd.alpha = 0.1;
  gd.temperature = 15;
  gd.marginal_weight = gd.entropy_order = 1;
  gd.iterations = 20;
  gd.lr = 1e-3;
  gd.adam_beta1 = 0.9;
  gd.adam_beta2 = 0.999;
  gd.eps = 1e-8;
  gd.normalize = true;
  gd_solve(batch, gd, out, alone);
  print(probs);
  print(weights);

  // Half an iteration on a part, around some mean.
  std::vector<T> scale(kSamples), log_probs(size_t(shard_lanes(kSamples) * kClasses)), factor(kClasses, T(1));
  std::vector<double> columns(3 * kClasses), scalars(4), sums(kClasses * kDim), totals(kClasses);
  bool extreme;
  shard_scale(batch, true, scale.data(), &extreme, status.data(), alone);
  ShardParams params;
  params.temperature = 15;
  params.support_weight = 0.1;
  params.query_weight = 0.2;
  params.power = 1.1;
  params.method = Method::adm;
  ShardSoftmax<void> softmax;
  softmax.scale = scale.data();
  softmax.mean = softmax.weights = weights.data();
  softmax.log_probs = log_probs.data();
  softmax.columns = columns.data();
  softmax.scalars = scalars.data();
  shard_softmax(batch, params, softmax, status.data(), alone);
  ShardSums<void> weighted;
  weighted.scale = scale.data();
  weighted.mean = weights.data();
  weighted.log_probs = log_probs.data();
  weighted.factor = factor.data();
  weighted.sums = sums.data();
  weighted.totals = totals.data();
  shard_sums(batch, params, weighted, status.data(), alone);
  print(sums);
  print(totals);
}

}  // namespace

int main() {
  for (Form form : {Form::dual, Form::primal}) {
    solve<double>(Dtype::f64, form);
    solve<float>(Dtype::f32, form);
    solve<float>(Dtype::f16, form);
  }
}
