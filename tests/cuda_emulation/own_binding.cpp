// The emulator's own kernels as a Python module.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "memory.h"
#include "own_kernels.h"
#include "scheduler.h"

namespace py = pybind11;

namespace {

using Array = py::array_t<float, py::array::c_style | py::array::forcecast>;

// A kernel on a copy of the input; returns what it left in the output.
Array run(const std::string& name, const Array& input, py::ssize_t outputs, long long blocks,
          long long threads, long long shared_bytes, uint64_t seed, int processors) {
  emulation::configure({seed, processors, 101376, 0});
  emulation::release_all();
  const auto bytes = static_cast<size_t>(input.nbytes());
  unsigned char* const in = emulation::allocate("the input", bytes, emulation::Use::input);
  std::memcpy(in, input.data(), bytes);
  Array result(outputs);
  const auto result_bytes = static_cast<size_t>(result.nbytes());
  unsigned char* const out = emulation::allocate("the output", result_bytes, emulation::Use::output);
  launch_own(name, reinterpret_cast<const float*>(in), static_cast<int>(input.size()),
             reinterpret_cast<float*>(out), blocks, threads, shared_bytes);
  emulation::throw_host_problem();
  std::memcpy(result.mutable_data(), out, result_bytes);
  return result;
}

}  // namespace

PYBIND11_MODULE(TIM_EXT_MODULE, m) {
  m.def("run", &run, py::arg("name"), py::arg("input"), py::arg("outputs"), py::arg("blocks") = 1,
        py::arg("threads") = 128, py::arg("shared_bytes") = 0, py::arg("seed") = 0,
        py::arg("processors") = 4);
  m.def("remove_barrier", &emulation::remove_barrier);
  m.def("take_barrier_counts", &emulation::take_barrier_counts);
}
