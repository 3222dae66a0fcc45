// Launches of the step operators.
#include "cuda/core/launch.h"
#include "cuda/core/steps_kernels.cuh"

namespace tim_ext {
namespace cuda {
namespace {

template <class T>
bool aligned(const StepShape& shape, const void* features, const T* weights) {
  return shape.dim % kVector<T> == 0 && reinterpret_cast<uintptr_t>(features) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(weights) % 16 == 0;
}
template <class T>
int64_t shared_bytes(int64_t partial, int64_t classes, int arrays, int64_t counts) {
  Arena arena(nullptr);
  if (partial) arena.take<T>(partial);
  for (int i = 0; i < arrays; ++i) arena.take<T>(classes);
  if (counts) arena.take<int>(counts);
  return arena.used();
}

}  // namespace

template <class T>
void distance_softmax(const DistanceSoftmax<T>& step, cudaStream_t stream) {
  const StepShape& shape = step.shape;
  const int64_t tiles = (shape.samples + kSoftmaxRows - 1) / kSoftmaxRows;
  if (shape.tasks * tiles == 0) return;
  const int64_t shared = shared_bytes<T>(0, shape.classes, 1, 0);
  allow_shared(distance_softmax_kernel<T>, shared);
  TIM_LAUNCH((distance_softmax_kernel<T>), shape.tasks * tiles, kThreads, size_t(shared), stream, step,
             aligned(shape, step.features, step.weights));
  check(cudaGetLastError(), "distance_softmax");
}

template <class T>
void q_update(const QUpdate<T>& step, cudaStream_t stream) {
  const StepShape& shape = step.shape;
  if (shape.tasks * shape.samples == 0) return;
  const int64_t shared = shared_bytes<T>(0, shape.classes, 1, 0);
  allow_shared(q_update_kernel<T>, shared);
  TIM_LAUNCH((q_update_kernel<T>), shape.tasks, kThreads, size_t(shared), stream, step);
  check(cudaGetLastError(), "q_update");
}

template <class T>
void w_update(const WUpdate<T>& step, cudaStream_t stream) {
  const StepShape& shape = step.shape;
  constexpr int width = kLanes * kVector<T>;
  const int64_t groups = (shape.dim + width - 1) / width;
  if (shape.tasks * groups == 0) return;
  const int64_t shared = shared_bytes<T>(kPartial<T>, shape.classes, 2, 2);
  allow_shared(w_update_kernel<T>, shared);
  TIM_LAUNCH((w_update_kernel<T>), shape.tasks * groups, kThreads, size_t(shared), stream, step,
             aligned(shape, step.features, step.weights));
  check(cudaGetLastError(), "w_update");
}

#define TIM_INSTANTIATE(T)                                                    \
  template void distance_softmax<T>(const DistanceSoftmax<T>&, cudaStream_t); \
  template void q_update<T>(const QUpdate<T>&, cudaStream_t);                 \
  template void w_update<T>(const WUpdate<T>&, cudaStream_t);
TIM_INSTANTIATE(float)
TIM_INSTANTIATE(double)
#undef TIM_INSTANTIATE

}  // namespace cuda
}  // namespace tim_ext
