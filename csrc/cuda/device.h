// Torch's side of a CUDA operator: the device and the stream it must use, and device memory.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "common/torch_abi.h"
#include "cuda/core/core.h"

namespace tim_ext {

// Makes the device of a tensor the current one for as long as it lives.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Tensor& t)
      : guard_(t.get_device_index()), index_(t.get_device_index()), device(cuda::current_device()) {}

  cudaStream_t stream() const {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
    return static_cast<cudaStream_t>(stream);
  }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  int32_t index_;

 public:
  const cuda::Device device;
};

// From torch's caching allocator: freed on the host at once, reused only by later work of the stream.
inline Tensor new_workspace(const Tensor& like, size_t bytes) {
  return new_tensor(like, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
}

}  // namespace tim_ext
