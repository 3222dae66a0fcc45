// torch's own thread pool as a Team for the core.
#pragma once

#include <exception>
#include <mutex>

#include "common/interrupt.h"
#include "common/torch_abi.h"
#include "cpu/core/core.h"

namespace tim_ext {

inline void run_on_torch_threads(int64_t n, void (*body)(void*, int64_t), void* context) {
  // torch's own report of an exception in a worker does not say what happened: carry it over.
  std::exception_ptr first;
  std::mutex mutex;
  torch::stable::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
    try {
      for (int64_t i = begin; i < end; ++i) body(context, i);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      if (!first) first = std::current_exception();
    }
  });
  if (first) std::rethrow_exception(first);
}

inline Team torch_team() {
  return {static_cast<int>(torch::stable::get_num_threads()), run_on_torch_threads};
}

// That asks for signals, and ends where one interrupts.
inline Team asking(Interrupt& interrupt, Team team) {
  team.pause = Interrupt::ask;
  team.asked = &interrupt;
  return team;
}

}  // namespace tim_ext
