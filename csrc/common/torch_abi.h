// Everything of torch that tim_ext uses, in one place: the stable ABI only, so that a library built once
// loads in every torch from 2.10 on.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/sizes.h"

namespace tim_ext {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline std::string shape_of(const std::vector<int64_t>& sizes) {
  std::string s = "[";
  for (size_t i = 0; i < sizes.size(); ++i) s += (i ? ", " : "") + std::to_string(sizes[i]);
  return s + "]";
}
inline std::string shape_of(const Tensor& t) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < t.dim(); ++i) sizes.push_back(t.size(i));
  return shape_of(sizes);
}

// Whether autograd follows a tensor: then a view of it is no leaf of the graph. (The stable ABI has no getter.)
inline bool is_followed(const Tensor& t) {
  if (!aoti_torch_grad_mode_is_enabled()) return false;
  StableIValue stack[1] = {torch::stable::detail::from(t)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::alias", "", stack, TORCH_ABI_VERSION));
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::is_leaf", "", stack, TORCH_ABI_VERSION));
  return !torch::stable::detail::to<bool>(stack[0]);
}

// A new tensor on the device of `like`. The types of results go by torch's C functions: torch::stable::new_empty looks its
// operator up by name each time, which the six results of one small task notice.
inline Tensor new_tensor(const Tensor& like, const std::vector<int64_t>& shape, ScalarType dtype) {
  int32_t type = 0;
  switch (dtype) {
    case ScalarType::Float:
      type = aoti_torch_dtype_float32();
      break;
    case ScalarType::Double:
      type = aoti_torch_dtype_float64();
      break;
    case ScalarType::Long:
      type = aoti_torch_dtype_int64();
      break;
    default:
      return torch::stable::new_empty(like, shape, dtype);
  }
  std::vector<int64_t> strides(shape.size(), 1);
  int64_t size = 1;
  bool fits = true;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = size;
    fits = fits && multiply(size, shape[i] > 0 ? shape[i] : 1, &size);
  }
  STD_TORCH_CHECK(fits, "tim_ext: a result of shape ", shape_of(shape), " is too large");
  int32_t device = 0, index = 0;
  AtenTensorHandle handle = nullptr;
  const bool made = aoti_torch_get_device_type(like.get(), &device) == 0 &&
                    aoti_torch_get_device_index(like.get(), &index) == 0 &&
                    aoti_torch_empty_strided(int64_t(shape.size()), shape.data(), strides.data(), type,
                                             device, index, &handle) == 0;
  STD_TORCH_CHECK(made, "tim_ext: torch could not allocate a result");
  return Tensor(handle);
}

// How the elements of a tensor must lie.
enum class Dense {
  whole,  // contiguous
  rows,   // in its last dimension
  no
};

// Refuses a tensor that is not a contiguous (or so dense) `dtype` tensor of the given shape (-1: any size), on the device of
// `like` or, without it, on the CPU.
inline void check_tensor(const char* op, const char* name, const Tensor& t, ScalarType dtype,
                         const std::vector<int64_t>& shape, const Tensor* like = nullptr,
                         Dense dense = Dense::whole) {
  std::string expected;
  bool fits = t.dim() == static_cast<int64_t>(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    expected += (i ? ", " : "") + (shape[i] < 0 ? std::string("*") : std::to_string(shape[i]));
    fits = fits && (shape[i] < 0 || t.size(static_cast<int64_t>(i)) == shape[i]);
  }
  STD_TORCH_CHECK(fits, op, ": ", name, " must have shape [", expected, "], got ", shape_of(t));
  STD_TORCH_CHECK(t.scalar_type() == dtype, op, ": ", name, " has another dtype than expected (",
                  torch::headeronly::toString(dtype), "), got ",
                  torch::headeronly::toString(t.scalar_type()));
  const bool in_place =
      like == nullptr ? t.is_cpu()
                      : t.is_cpu() == like->is_cpu() && t.get_device_index() == like->get_device_index();
  STD_TORCH_CHECK(in_place, op, ": ", name, " must be on ",
                  like == nullptr ? "the CPU" : "the device of the other arguments");
  if (dense == Dense::whole) STD_TORCH_CHECK(t.is_contiguous(), op, ": ", name, " must be contiguous");
  if (dense == Dense::rows)
    STD_TORCH_CHECK(t.numel() == 0 || t.size(t.dim() - 1) == 1 || t.stride(t.dim() - 1) == 1, op, ": ", name,
                    " must be contiguous in its last dimension");
  const bool floating = dtype != ScalarType::Long;  // integers have no gradient
  STD_TORCH_CHECK(!floating || !is_followed(t), op, ": ", name, " must not require a gradient, as ", op,
                  " has none for it; pass ", name, ".detach()");
}

inline void check_floating(const char* op, const char* name, const Tensor& t) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float || t.scalar_type() == ScalarType::Double, op, ": ",
                  name, " must be float32 or float64, got ", torch::headeronly::toString(t.scalar_type()));
}

}  // namespace tim_ext
