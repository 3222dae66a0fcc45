// Device memory: one arena for all global and shared memory, so that every address tells what it is.
//
// Pieces lie apart. In the plain build the gaps and the kernels' red zones hold a pattern, and a changed pattern is
// an error. In the checked build (TIM_EXT_CHECK_ACCESS) the compiler calls us at every access of a kernel, and it is
// held against the shadow of its bytes: allocated, written before it is read, no write to an input, and ordered by
// a barrier after every access of another thread that it conflicts with. In the AddressSanitizer build the gaps and
// red zones are poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulation {

enum class Use { input, output, workspace, shared };

constexpr unsigned char kPoison = 0xff;  // NaN in every floating type

// A new piece of memory, 256-byte aligned and full of `fill`; only an input counts as written.
unsigned char* allocate(const std::string& name, size_t bytes, Use use, unsigned char fill = kPoison);
void release(
    unsigned char* start);  // shared memory of a block that ended; its gap and red zones were checked
void release_all();

// A red zone. The host's stay until the memory is released, the kernels' until check_zones.
void forbid_bytes(const unsigned char* start, size_t bytes, bool by_host);
// The opposite, for a part of a piece: fresh memory again.
void permit_bytes(const unsigned char* start, size_t bytes);
// Throws if the gap behind a piece, or a red zone inside it, was written.
void check_zones(const unsigned char* start, const std::string& when);
void check_all_zones(const std::string& when);

// Order, for the checked build ----------------------------------------------------------------------------

// The readers of a word since the last barrier of their block, where there is more than one.
class Readers {
 public:
  explicit Readers(unsigned threads) : threads_(threads) {}
  void clear() { clocks_.clear(); }
  uint32_t make() {
    clocks_.resize(clocks_.size() + threads_, 0);
    return static_cast<uint32_t>(clocks_.size() / threads_ - 1);
  }
  uint32_t* at(uint32_t set) {
    return &clocks_[static_cast<size_t>(set) * threads_];
  }  // by thread; 0: no reader
  unsigned threads() const { return threads_; }

 private:
  unsigned threads_;
  std::vector<uint32_t> clocks_;
};

// The thread that runs now, and its place in time. Two accesses of one block are ordered if a block barrier lies
// between them (their epochs differ), and within a warp also if the later thread knows the earlier one's clock,
// from __syncwarp. Shuffles and votes order nothing: CUDA does not promise that they do. Accesses of two blocks are
// ordered by a barrier, a fence and an atomic operation in one, and the sight of it, a fence and a barrier in the other.
struct Running {
  bool in_kernel = false;
  uint32_t first_block = 1;  // of this launch: blocks are numbered over all launches, 0 is nobody
  uint32_t blocks = 0;       // of this launch
  uint32_t block = 0;
  uint32_t epoch = 0;  // block barriers passed
  unsigned thread = 0;
  const uint32_t* clocks = nullptr;  // [32] of the warp, as far as this thread knows; its own is the present
  Readers* readers = nullptr;
  const uint32_t* known_blocks =
      nullptr;  // [known_count] what blocks of this launch did before this epoch is visible
  size_t known_count = 0;
  const char* stack = nullptr;  // its own memory: local variables
  size_t stack_bytes = 0;
  const char* arguments = nullptr;  // of the kernel
  size_t arguments_bytes = 0;
};
extern Running running;

// Of an atomic operation, which the compiler does not tell us of.
void check_atomic(const void* address, size_t bytes, const void* caller);

// Provided by the scheduler: a volatile read of the running thread.
void note_volatile_read(const void* address);
// Provided by the scheduler: ends the kernel with an error of the running thread, or the host's call, when it ends.
void report(const std::string& what);

}  // namespace emulation
