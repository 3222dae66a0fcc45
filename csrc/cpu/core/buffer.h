// Aligned memory that grows when asked for more.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace tim_ext {

// Memory of one thread, kept from task to task; what it held is lost when it grows.
class Buffer {
 public:
  void* at_least(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      const int64_t size = (bytes + 63) / 64 * 64;
      memory_.reset(std::aligned_alloc(64, static_cast<size_t>(size)));
      if (!memory_) throw std::bad_alloc();
      size_ = size;
    }
    return memory_.get();
  }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace tim_ext
