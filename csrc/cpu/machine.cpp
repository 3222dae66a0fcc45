// What the CPU kernels run on: instruction set and measured peak.
#include <atomic>
#include <chrono>

#include "common/torch_abi.h"
#include "cpu/core/kernels.h"
#include "cpu/team.h"

namespace tim_ext {
namespace {

std::string capability() { return cpu_capability(); }

template <class T>
double measure_peak(double seconds) {
  using Clock = std::chrono::steady_clock;
  const Team team = torch_team();
  std::atomic<int64_t> done{0};
  const auto start = Clock::now();
  auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  auto work = [&] {
    T sink = T(1e-3);
    int64_t mine = 0;
    while (elapsed() < seconds) mine += kernels<T>().multiply_add_rounds(10000, &sink);
    done += sink == T(-1) ? 0 : mine;  // the comparison keeps the work alive
  };
  team.parallel(team.threads, [](void* w, int64_t) { (*static_cast<decltype(work)*>(w))(); }, &work);
  return double(done) / elapsed();
}

double cpu_peak(double seconds, bool double_precision) {
  return double_precision ? measure_peak<double>(seconds) : measure_peak<float>(seconds);
}

}  // namespace
}  // namespace tim_ext

STABLE_TORCH_LIBRARY_IMPL(tim_ext, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&tim_ext::capability));
  m.impl("cpu_peak", TORCH_BOX(&tim_ext::cpu_peak));
}
