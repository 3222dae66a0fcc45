// The torch-free core of the CUDA operators: plain device pointers, sizes and parameters.
//
// A solve passes through: adm.cu or gd.cu here (which kernel each task gets, launches) -> the kernel
// (*_kernels.cuh), which keeps a thread block on a task until it is solved.
//
// In a Batch, features, rows, labels and weights are device pointers; offsets, classes and class_prior are host pointers,
// read before the call returns. Outputs are device pointers. Nothing here allocates, synchronises or
// copies from host memory: small tables travel as kernel arguments, so that a call can be captured in a CUDA graph.
#pragma once

#include <cstddef>

#include "common/problem.h"
#include "common/steps.h"
#include "cuda/core/platform.h"

namespace tim_ext {
namespace cuda {

// How long batches are given to the device: in slices, so that no launch is longer than a display or a user waits. Between two of
// them, between(asked, stream) is called, which may wait for the stream; what it throws ends the call.
struct Pace {
  double slice = 0;  // multiply-adds of a slice, at least one task; 0: all at once
  void (*between)(void* asked, cudaStream_t stream) = nullptr;
  void* asked = nullptr;
};

// What the launch code must know of a device.
struct Device {
  int processors;        // streaming multiprocessors
  int shared_per_block;  // bytes a block may have at most (opt-in)
  Pace pace;
};
Device current_device();

// Bytes of workspace (device memory, 256-byte aligned), then the work itself on a stream.
size_t adm_workspace(const Batch& batch, const AdmParams& params, const Device& device);
void adm_solve(const Batch& batch, const AdmParams& params, const Outputs& outputs, void* workspace,
               const Device& device, cudaStream_t stream);

size_t gd_workspace(const Batch& batch, const GdParams& params, const Device& device);
void gd_solve(const Batch& batch, const GdParams& params, const Outputs& outputs, void* workspace,
              const Device& device, cudaStream_t stream);

// With the workspace of gd_workspace.
void gd_gradient(const Batch& batch, const GdParams& params, const Gradient& out, void* workspace,
                 const Device& device, cudaStream_t stream);

// The steps; T is float or double.
template <class T>
void distance_softmax(const DistanceSoftmax<T>& step, cudaStream_t stream);
template <class T>
void q_update(const QUpdate<T>& step, cudaStream_t stream);
template <class T>
void w_update(const WUpdate<T>& step, cudaStream_t stream);

}  // namespace cuda
}  // namespace tim_ext
