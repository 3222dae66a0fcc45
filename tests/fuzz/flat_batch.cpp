// libFuzzer: any bytes as a flat batch. Accepted batches are those whose sizes are right in 128 bits, and the core then
// brings their tasks into solver order or refuses them, reading arrays of exactly the sizes that were accepted.
// (The solve itself has random batches of its own: tests/sanitizers.)
//
//   byte 0   T, 1: number of samples (each 0 .. 15), 2: bit 0 rows, the rest columns of the features
//   then     offsets [T + 1], classes [T], labels [N], rows [N] as Bytes::number reads them; rows of the pool
#include <cstdint>
#include <cstdlib>
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes{data, size};
  const int64_t tasks = bytes.byte() % 16, samples = bytes.byte() % 16;
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
  Batch batch;
  batch.pool_rows = pool;
  batch.dim = 1 + flags / 2;
  batch.rows = (flags & 1) ? rows.data() : nullptr;
  batch.labels = labels.data();
  batch.offsets = offsets.data();
  batch.classes = classes.data();
  batch.tasks = tasks;
  order(batch, sizes);
  return 0;
}
