// Why a task was refused. The numbers are the contract between the kernels and the Python package,
// which turns them into sentences.
#pragma once

#include <cstdint>

namespace tim_ext {

enum class Status : int64_t {
  ok = 0,
  features_not_finite = 1,    // position: sample,  value: unused
  label_out_of_range = 2,     // position: sample,  value: the label
  class_without_support = 3,  // position: unused,  value: the class
  no_support = 4,             // position: unused,  value: unused
  row_out_of_range = 5,       // position: sample,  value: the row
  result_not_finite = 6,      // the parameters left the range of the dtype
  weights_not_finite = 7,     // position: unused,  value: the class
};

constexpr int64_t kQuery = -1;      // label of a query sample
constexpr int64_t kPadding = -100;  // label of a sample that is ignored

}  // namespace tim_ext
