// Where the kernels run: on a GPU, or on the CPU of a test that emulates one (tests/cuda_emulation). This
// header is the only difference; the kernels are compiled from the same files.
#pragma once

#ifdef TIM_EXT_EMULATE_CUDA
#include "emulation.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// The launch of a kernel: TIM_LAUNCH((kernel<float>), blocks, threads, shared bytes, stream, arguments ...)
#define TIM_LAUNCH(kernel, blocks, threads, shared, stream, ...) \
  kernel<<<static_cast<unsigned>(blocks), threads, shared, stream>>>(__VA_ARGS__)

// The same for a kernel whose blocks wait for each other: all of them must be resident at once, or the launch is an error
// and nothing runs.
#define TIM_LAUNCH_COOPERATIVE(kernel, blocks, threads, shared, stream, ...)                        \
  tim_ext::cuda::launch_cooperative(kernel, static_cast<unsigned>(blocks), threads, shared, stream, \
                                    __VA_ARGS__)

// The block's dynamic shared memory; the only shared memory the kernels use.
#define TIM_SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

// Between two arrays in one piece of memory: nothing on a GPU; a forbidden zone in the emulation, until the memory
// gets another layout.
constexpr int kRedZone = 0;
__host__ __device__ __forceinline__ void forbid(const void*, long long) {}
__host__ __device__ __forceinline__ void permit(const void*, long long) {}

namespace tim_ext {
namespace cuda {
template <class... Parameters, class... Arguments>
cudaError_t launch_cooperative(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                               size_t shared, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}
}  // namespace cuda
}  // namespace tim_ext
#endif
