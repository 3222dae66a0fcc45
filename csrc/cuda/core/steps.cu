// Launches of the step operators.
#include "cuda/core/launch.h"
#include "cuda/core/steps_kernels.cuh"

namespace tim_ext {
namespace cuda {
namespace {

template <class T>
bool aligned(const StepShape& shape, const T* features, const T* weights) {
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
void distance_softmax(const T* features, const T* weights, const StepShape& shape, double temperature,
                      T* probs, T* log_probs, cudaStream_t stream) {
  const int64_t tiles = (shape.samples + kSoftmaxRows - 1) / kSoftmaxRows;
  if (shape.tasks * tiles == 0) return;
  const int64_t shared = shared_bytes<T>(0, shape.classes, 1, 0);
  allow_shared(distance_softmax_kernel<T>, shared);
  TIM_LAUNCH((distance_softmax_kernel<T>), shape.tasks * tiles, kThreads, size_t(shared), stream, features,
             weights, shape, aligned(shape, features, weights), T(temperature * kLog2e), probs, log_probs);
  check(cudaGetLastError(), "distance_softmax");
}

template <class T>
void q_update(const T* log_probs, const int64_t* labels, const StepShape& shape, double power,
              double marginal_power, T* assignments, cudaStream_t stream) {
  if (shape.tasks * shape.samples == 0) return;
  const int64_t shared = shared_bytes<T>(0, shape.classes, 1, 0);
  allow_shared(q_update_kernel<T>, shared);
  TIM_LAUNCH((q_update_kernel<T>), shape.tasks, kThreads, size_t(shared), stream, log_probs, labels, shape,
             T(power), T(marginal_power), assignments);
  check(cudaGetLastError(), "q_update");
}

template <class T>
void w_update(const T* features, const T* weights, const T* probs, const T* assignments,
              const int64_t* labels, const StepShape& shape, double support_weight, T* out,
              cudaStream_t stream) {
  constexpr int width = kLanes * kVector<T>;
  const int64_t groups = (shape.dim + width - 1) / width;
  if (shape.tasks * groups == 0) return;
  const int64_t shared = shared_bytes<T>(kPartial<T>, shape.classes, 2, 2);
  allow_shared(w_update_kernel<T>, shared);
  TIM_LAUNCH((w_update_kernel<T>), shape.tasks * groups, kThreads, size_t(shared), stream, features, weights,
             probs, assignments, labels, shape, aligned(shape, features, weights), T(support_weight), out);
  check(cudaGetLastError(), "w_update");
}

#define TIM_INSTANTIATE(T)                                                                                 \
  template void distance_softmax<T>(const T*, const T*, const StepShape&, double, T*, T*, cudaStream_t);   \
  template void q_update<T>(const T*, const int64_t*, const StepShape&, double, double, T*, cudaStream_t); \
  template void w_update<T>(const T*, const T*, const T*, const T*, const int64_t*, const StepShape&,      \
                            double, T*, cudaStream_t);
TIM_INSTANTIATE(float)
TIM_INSTANTIATE(double)
#undef TIM_INSTANTIATE

}  // namespace cuda
}  // namespace tim_ext
