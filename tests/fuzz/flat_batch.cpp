// libFuzzer: any bytes as a flat batch. Accepted batches are those whose sizes are right in 128 bits, and the core then
// orders and solves them within arrays of exactly the sizes that the operators allocate (AddressSanitizer looks on).
//
//   byte 0      T, 1: number of samples (each 0 .. 15), 2: columns (1 .. 8), 3: bit 0 rows, bit 1 dual, bit 2 GD
//   then        offsets [T + 1], classes [T], labels [N], rows [N] as Bytes::number reads them
//   the rest    features
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/sizes.h"
#include "cpu/core/batch.h"

using namespace tim_ext;

namespace {

struct Bytes {
  const uint8_t* at;
  size_t left;

  uint8_t byte() {
    if (left == 0) return 0;
    --left;
    return *at++;
  }
  // One byte says how wide the number is: small ones, those at the ends of int64, or any.
  int64_t number() {
    const uint8_t kind = byte();
    if (kind < 160) return int64_t(kind) - 16;
    if (kind < 176) return INT64_MAX - int64_t(byte());
    if (kind < 192) return INT64_MIN + int64_t(byte());
    if (kind < 208) return (int64_t(1) << (byte() % 63)) + int64_t(byte() % 3) - 1;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return int64_t(value);
  }
  std::vector<int64_t> numbers(int64_t n) {
    std::vector<int64_t> all(static_cast<size_t>(n));
    for (int64_t& one : all) one = number();
    return all;
  }
};

void require(bool fact) {
  if (!fact) std::abort();
}

// The same rules, in numbers that cannot wrap.
bool is_a_batch(const std::vector<int64_t>& offsets, const std::vector<int64_t>& classes, int64_t samples,
                __int128* probs, __int128* all) {
  *probs = *all = 0;
  if (offsets.front() != 0 || offsets.back() != samples) return false;
  for (size_t t = 0; t < classes.size(); ++t) {
    const __int128 n = __int128(offsets[t + 1]) - offsets[t];
    if (n < 0 || classes[t] < 1) return false;
    *probs += n * classes[t];
    *all += classes[t];
  }
  return *probs <= INT64_MAX && *all <= INT64_MAX;
}

void order(const Batch& batch, const BatchSizes& sizes) {
  Worker<float> worker;
  int64_t classes_before = 0;
  for (int64_t t = 0; t < batch.tasks; ++t) {
    Task task;
    int64_t status[3] = {0, 0, 0};
    const int64_t n = batch.offsets[t + 1] - batch.offsets[t];
    if (arrange(batch, t, classes_before, worker, task, status)) {
      require(task.samples() <= n && task.classes <= task.support && status[0] == 0);
      for (int64_t i = 0; i < task.samples(); ++i)
        require(task.rows[i] >= 0 && task.rows[i] < batch.pool_rows && task.labels[i] < task.classes &&
                task.position[i] >= 0 && task.position[i] < n);
    } else {
      require(status[0] != 0);
    }
    classes_before += batch.classes[t];
  }
  require(classes_before == sizes.classes);
}

void solve(const Batch& batch, const BatchSizes& sizes, bool dual, bool gd) {
  constexpr int64_t kMost = 4096;  // what a result may have here; larger ones are not asked for
  const int64_t samples = batch.offsets[batch.tasks];
  const bool wanted = sizes.probs <= kMost && sizes.classes <= kMost;
  std::vector<float> probs(size_t(wanted ? sizes.probs : 0)),
      weights(size_t(wanted ? sizes.classes * batch.dim : 0));
  const size_t tasks = size_t(batch.tasks);
  std::vector<int64_t> predictions(static_cast<size_t>(samples)), iterations(tasks), status(3 * tasks);
  Outputs out;
  out.probs = probs.empty() ? nullptr : probs.data();
  out.weights = weights.empty() ? nullptr : weights.data();
  out.predictions = predictions.data();
  out.iterations = iterations.data();
  out.status = status.data();
  const Team alone{1, nullptr};
  if (gd) {
    GdParams params;
    params.lam = params.alpha = 0.1;
    params.temperature = 15;
    params.marginal_weight = params.entropy_order = 1;
    params.iterations = 2;
    params.lr = 1e-3;
    params.adam_beta1 = 0.9;
    params.adam_beta2 = 0.999;
    params.eps = 1e-8;
    params.normalize = true;
    gd_solve(batch, params, out, alone);
  } else {
    AdmParams params;
    params.lam = params.alpha = 0.1;
    params.beta = params.marginal_weight = 1;
    params.temperature = 15;
    params.iterations = 2;
    params.normalize = true;
    params.form = dual ? Form::dual : Form::primal;
    adm_solve(batch, params, out, alone);
  }
  for (size_t t = 0; t < tasks; ++t) require(status[3 * t] >= 0 && status[3 * t] <= 6);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes{data, size};
  const int64_t tasks = bytes.byte() % 16, samples = bytes.byte() % 16, dim = 1 + bytes.byte() % 8;
  const uint8_t flags = bytes.byte();
  const std::vector<int64_t> offsets = bytes.numbers(tasks + 1), classes = bytes.numbers(tasks),
                             labels = bytes.numbers(samples),
                             rows = (flags & 1) ? bytes.numbers(samples) : std::vector<int64_t>();
  BatchSizes sizes;
  __int128 probs = 0, all = 0;
  const bool right = is_a_batch(offsets, classes, samples, &probs, &all);
  require(check_layout(offsets.data(), classes.data(), tasks, samples, &sizes).empty() == right);
  if (!right) return 0;
  require(sizes.probs == probs && sizes.classes == all);
  for (int64_t offset : offsets) require(offset >= 0 && offset <= samples);

  const int64_t pool = (flags & 1) ? bytes.byte() % 8 : samples;
  std::vector<float> features(size_t(pool * dim));
  for (float& value : features) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits = bits << 8 | bytes.byte();
    std::memcpy(&value, &bits, sizeof(value));  // NaN, Inf and denormal numbers too
  }
  Batch batch;
  batch.features = features.data();
  batch.pool_rows = pool;
  batch.dim = dim;
  batch.rows = (flags & 1) ? rows.data() : nullptr;
  batch.labels = labels.data();
  batch.offsets = offsets.data();
  batch.classes = classes.data();
  batch.tasks = tasks;
  order(batch, sizes);
  solve(batch, sizes, flags & 2, flags & 4);
  return 0;
}
