// Torch's side of a CUDA operator: the device and the stream it must use, and device memory.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include "common/interrupt.h"
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

// A device whose long batches come in slices of about half a second at most: a longer launch stops a display, and is deaf to
// signals. While a graph is recorded nothing runs, and nobody waits.
class Paced {
 public:
  Paced(const char* op, const OnDeviceOf& here, Dtype dtype) : interrupt_(op), device_(here.device) {
    device_.pace.slice = kSeconds * device_.processors * (dtype == Dtype::f64 ? kDoubleRate : kFloatRate);
    device_.pace.between = between;
    device_.pace.asked = &interrupt_;
  }
  const cuda::Device& device() const { return device_; }

 private:
  static constexpr double kSeconds = 0.5;
  // Multiply-adds per second of one multiprocessor, of a slow one: simulation gives an A100 twice that, and the doubles of
  // many GPUs are a 64th as fast.
  static constexpr double kFloatRate = 1e10, kDoubleRate = 2.5e8;

  static void between(void* interrupt, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone)
      return;
    cudaStreamSynchronize(stream);  // its failures come again in what follows
    Interrupt::ask(interrupt);
  }

  Interrupt interrupt_;
  cuda::Device device_;
};

// From torch's caching allocator: freed on the host at once, reused only by later work of the stream.
inline Tensor new_workspace(const Tensor& like, size_t bytes) {
  return new_tensor(like, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
}

}  // namespace tim_ext
