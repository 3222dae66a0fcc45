// Types of tensors, and checks that several families of operators share.
#pragma once

#include "common/problem.h"
#include "common/torch_abi.h"

namespace tim_ext {

inline Dtype dtype_of(const char* op, const Tensor& features) {
  switch (features.scalar_type()) {
    case ScalarType::Float:
      return Dtype::f32;
    case ScalarType::Double:
      return Dtype::f64;
    case ScalarType::Half:
      return Dtype::f16;
    case ScalarType::BFloat16:
      return Dtype::bf16;
    default:
      STD_TORCH_CHECK(false, op, ": features must be float32, float64, float16 or bfloat16, got ",
                      torch::headeronly::toString(features.scalar_type()));
  }
}

// The type that features compute in.
inline ScalarType real_type(Dtype dtype) {
  return dtype == Dtype::f64 ? ScalarType::Double : ScalarType::Float;
}

inline void check_prior(const char* op, const Tensor& class_prior) {
  const double* value = class_prior.const_data_ptr<double>();
  for (int64_t k = 0; k < class_prior.numel(); ++k)
    STD_TORCH_CHECK(value[k] > 0, op, ": class_prior must be > 0, got ", value[k]);
}

}  // namespace tim_ext
