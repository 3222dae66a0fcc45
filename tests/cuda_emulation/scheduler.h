// The host's side of the emulation: the device's properties, its memory, and what a test may ask for.
//
// A launch keeps one to three blocks in flight (a cooperative one all of them), and draws the thread that runs next with the seed of the test: at
// random, or the one that went last as long as it can go on, or a mixture. A thread that breaks a rule ends the
// launch with an Error that names the block, the thread and the line of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace emulation {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Settings {
  uint64_t seed = 0;
  int processors = 4;
  int shared_per_block = 101376;  // bytes a block may have at most
  int resident = 0;  // blocks of a team that fit, if part of the device is set aside; 0: a processor each
};
void configure(const Settings& settings);
const Settings& settings();

// Code of the host that touched device memory: throws what was found since the last call (checked build).
void throw_host_problem();

// A barrier (__syncthreads or __syncwarp) that is passed as if it were not there: "file.cuh:12", or "" for none.
void remove_barrier(const std::string& site);
// How often each barrier was completed since the last call: {"file.cuh:12": 8}
std::map<std::string, int64_t> take_barrier_counts();

}  // namespace emulation
