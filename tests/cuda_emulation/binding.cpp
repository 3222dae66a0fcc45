// The CUDA operators under emulation as a Python module: numpy arrays in, numpy arrays out. Arguments and results are
// those of csrc/ops.cpp; half types come as uint16 arrays with their name. Every array is copied into device
// memory of exactly its size, and results start as garbage.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <vector>

#include "cuda/core/core.h"
#include "memory.h"
#include "scheduler.h"

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

using emulation::Use;
using tim_ext::Dtype;
template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Integers = Array<int64_t>;
using Shape = std::vector<py::ssize_t>;

// How one call is emulated.
struct Run {
  uint64_t seed;
  int processors, shared_per_block;

  static Run start(const py::dict& emulation) {
    const Run run{emulation["seed"].cast<uint64_t>(), emulation["processors"].cast<int>(),
                  emulation["shared_per_block"].cast<int>()};
    emulation::release_all();
    emulation::configure({run.seed, run.processors, run.shared_per_block});
    return run;
  }
  tim_ext::cuda::Device device() const { return {processors, shared_per_block}; }
};

template <class T = void>
const T* input(const char* name, const py::array& array) {
  unsigned char* const memory = emulation::allocate(name, size_t(array.nbytes()), Use::input);
  std::memcpy(memory, array.data(), size_t(array.nbytes()));
  return reinterpret_cast<const T*>(memory);
}

// An array that a kernel fills. Its garbage is NaN in one half of the schedules, a number in the other.
struct Output {
  py::array array;
  unsigned char* memory;

  Output(const char* name, const py::dtype& dtype, const Shape& shape, const Run& run)
      : array(dtype, shape),
        memory(emulation::allocate(name, size_t(array.nbytes()), Use::output,
                                   run.seed % 2 ? 0x5a : emulation::kPoison)) {}
  template <class T = void>
  T* pointer() const {
    return array.size() ? reinterpret_cast<T*>(memory) : nullptr;
  }
  py::array fetch() {
    std::memcpy(array.mutable_data(), memory, size_t(array.nbytes()));
    return array;
  }
};

void* workspace(size_t bytes) { return emulation::allocate("the workspace", bytes, Use::workspace); }

Dtype dtype_of(const std::string& name) {
  if (name == "float32") return Dtype::f32;
  if (name == "float64") return Dtype::f64;
  if (name == "float16") return Dtype::f16;
  if (name == "bfloat16") return Dtype::bf16;
  throw py::value_error("dtype " + name);
}

py::dtype real_of(Dtype dtype) {
  return dtype == Dtype::f64 ? py::dtype::of<double>() : py::dtype::of<float>();
}

tim_ext::Batch batch_of(const py::array& features, const std::string& dtype,
                        const std::optional<Integers>& rows, const Integers& labels, const Integers& offsets,
                        const Integers& classes, const std::optional<Array<double>>& class_prior) {
  return {dtype_of(dtype),
          input("features", features),
          features.shape(0),
          features.shape(1),
          rows ? input<int64_t>("rows", *rows) : nullptr,
          input<int64_t>("labels", labels),
          offsets.data(),
          classes.data(),
          class_prior ? class_prior->data() : nullptr,
          classes.size()};
}

// A solver: probs, predictions, weights, iterations, history, status
template <class Params, class Bytes, class Solve>
py::tuple solve(const py::array& features, const std::string& dtype, const std::optional<Integers>& rows,
                const Integers& labels, const Integers& offsets, const Integers& classes,
                const std::optional<Array<double>>& class_prior, const Params& params, py::ssize_t probs_size,
                py::ssize_t weights_rows, bool history, const py::dict& emulation, Bytes bytes,
                Solve solver) {
  const Run run = Run::start(emulation);
  const tim_ext::Batch batch = batch_of(features, dtype, rows, labels, offsets, classes, class_prior);
  const py::dtype real = real_of(batch.dtype), integer = py::dtype::of<int64_t>();
  const py::ssize_t length = history ? params.iterations + 1 : 0;
  Output probs("probs", real, {probs_size}, run), predictions("predictions", integer, {labels.size()}, run),
      weights("weights", real, {weights_rows, batch.dim}, run),
      iterations("iterations", integer, {batch.tasks}, run),
      terms("history", real, {batch.tasks, length, 3}, run), status("status", integer, {batch.tasks, 3}, run);
  const tim_ext::Outputs outputs = {probs.pointer(),   predictions.pointer<int64_t>(),
                                    weights.pointer(), iterations.pointer<int64_t>(),
                                    terms.pointer(),   status.pointer<int64_t>()};
  solver(batch, params, outputs, workspace(bytes(batch, params, run.device())), run.device(), nullptr);
  emulation::throw_host_problem();
  return py::make_tuple(probs.fetch(), predictions.fetch(), weights.fetch(), iterations.fetch(),
                        terms.fetch(), status.fetch());
}

tim_ext::Solver solver_of(const std::string& name) {
  return name == "auto"   ? tim_ext::Solver::automatic
         : name == "dual" ? tim_ext::Solver::dual
                          : tim_ext::Solver::primal;
}

py::tuple adm_solve(const py::array& features, const std::string& dtype, const std::optional<Integers>& rows,
                    const Integers& labels, const Integers& offsets, const Integers& classes, double lam,
                    double alpha, double beta, double temperature, double marginal_weight, int64_t iterations,
                    double tol, bool normalize, const std::string& solver, py::ssize_t probs_size,
                    py::ssize_t weights_rows, bool history, const std::optional<Array<double>>& class_prior,
                    const py::dict& emulation) {
  const tim_ext::AdmParams params = {lam,        alpha, beta,      temperature,      marginal_weight,
                                     iterations, tol,   normalize, solver_of(solver)};
  return solve(features, dtype, rows, labels, offsets, classes, class_prior, params, probs_size, weights_rows,
               history, emulation, tim_ext::cuda::adm_workspace, tim_ext::cuda::adm_solve);
}

py::tuple gd_solve(const py::array& features, const std::string& dtype, const std::optional<Integers>& rows,
                   const Integers& labels, const Integers& offsets, const Integers& classes, double lam,
                   double alpha, double temperature, double marginal_weight, double entropy_order,
                   int64_t iterations, double lr, double adam_beta1, double adam_beta2, double eps,
                   double tol, bool normalize, py::ssize_t probs_size, py::ssize_t weights_rows, bool history,
                   const std::optional<Array<double>>& class_prior, const py::dict& emulation) {
  const tim_ext::GdParams params = {lam,           alpha,      temperature, marginal_weight,
                                    entropy_order, iterations, lr,          adam_beta1,
                                    adam_beta2,    eps,        tol,         normalize};
  return solve(features, dtype, rows, labels, offsets, classes, class_prior, params, probs_size, weights_rows,
               history, emulation, tim_ext::cuda::gd_workspace, tim_ext::cuda::gd_solve);
}

// terms [T, 3], gradient [T, K, d], status [T, 3] of features [T, N, d], weights [T, K, d], labels [T, N]
py::tuple gd_gradient(const py::array& features, const std::string& dtype, const py::array& weights,
                      const Integers& labels, double lam, double alpha, double temperature,
                      double marginal_weight, double entropy_order,
                      const std::optional<Array<double>>& class_prior, const py::dict& emulation) {
  const Run run = Run::start(emulation);
  const py::ssize_t tasks = features.shape(0), samples = features.shape(1), classes = weights.shape(1);
  std::vector<int64_t> offsets(size_t(tasks) + 1), counts(size_t(tasks), classes);
  for (py::ssize_t t = 0; t <= tasks; ++t) offsets[size_t(t)] = t * samples;
  const tim_ext::Batch batch = {dtype_of(dtype),
                                input("features", features),
                                tasks * samples,
                                features.shape(2),
                                nullptr,
                                input<int64_t>("labels", labels),
                                offsets.data(),
                                counts.data(),
                                class_prior ? class_prior->data() : nullptr,
                                tasks};
  const tim_ext::GdParams params = {lam, alpha, temperature, marginal_weight, entropy_order, 0, 0, 0, 0,
                                    0,   0,     false};
  const py::dtype real = real_of(batch.dtype);
  Output gradient("gradient", real, {tasks, classes, batch.dim}, run), terms("terms", real, {tasks, 3}, run),
      status("status", py::dtype::of<int64_t>(), {tasks, 3}, run);
  tim_ext::cuda::gd_gradient(batch, params, input("weights", weights), gradient.pointer(), terms.pointer(),
                             status.pointer<int64_t>(),
                             workspace(tim_ext::cuda::gd_workspace(batch, params, run.device())),
                             run.device(), nullptr);
  emulation::throw_host_problem();
  return py::make_tuple(terms.fetch(), gradient.fetch(), status.fetch());
}

template <class T>
py::tuple distance_softmax(const Array<T>& features, const Array<T>& weights, double temperature,
                           const py::dict& emulation) {
  const Run run = Run::start(emulation);
  const tim_ext::cuda::StepShape s = {features.shape(0), features.shape(1), weights.shape(1),
                                      features.shape(2)};
  Output probs("probs", features.dtype(), {s.tasks, s.samples, s.classes}, run),
      log_probs("log_probs", features.dtype(), {s.tasks, s.samples, s.classes}, run);
  tim_ext::cuda::distance_softmax<T>(input<T>("features", features), input<T>("weights", weights), s,
                                     temperature, probs.pointer<T>(), log_probs.pointer<T>(), nullptr);
  emulation::throw_host_problem();
  return py::make_tuple(probs.fetch(), log_probs.fetch());
}

template <class T>
py::array q_update(const Array<T>& log_probs, const Integers& labels, double alpha, double beta,
                   double marginal_weight, const py::dict& emulation) {
  const Run run = Run::start(emulation);
  const tim_ext::cuda::StepShape s = {log_probs.shape(0), log_probs.shape(1), log_probs.shape(2), 0};
  Output assignments("assignments", log_probs.dtype(), {s.tasks, s.samples, s.classes}, run);
  tim_ext::cuda::q_update<T>(input<T>("log_probs", log_probs), input<int64_t>("labels", labels), s,
                             1 + alpha / beta, marginal_weight / (marginal_weight + beta),
                             assignments.pointer<T>(), nullptr);
  emulation::throw_host_problem();
  return assignments.fetch();
}

template <class T>
py::array w_update(const Array<T>& features, const Array<T>& weights, const Array<T>& probs,
                   const Array<T>& assignments, const Integers& labels, double lam, double alpha, double beta,
                   const py::dict& emulation) {
  const Run run = Run::start(emulation);
  const tim_ext::cuda::StepShape s = {features.shape(0), features.shape(1), weights.shape(1),
                                      features.shape(2)};
  Output out("the new weights", features.dtype(), {s.tasks, s.classes, s.dim}, run);
  tim_ext::cuda::w_update<T>(input<T>("features", features), input<T>("weights", weights),
                             input<T>("probs", probs), input<T>("assignments", assignments),
                             input<int64_t>("labels", labels), s, lam / (beta + alpha), out.pointer<T>(),
                             nullptr);
  emulation::throw_host_problem();
  return out.fetch();
}

}  // namespace

PYBIND11_MODULE(TIM_EXT_MODULE, m) {
  const auto options = py::kw_only();
  m.def("adm_solve", &adm_solve, "features"_a, "dtype"_a, "rows"_a, "labels"_a, "offsets"_a, "classes"_a,
        options, "lam"_a, "alpha"_a, "beta"_a, "temperature"_a, "marginal_weight"_a, "iterations"_a, "tol"_a,
        "normalize"_a, "solver"_a, "probs_size"_a, "weights_rows"_a, "history"_a, "class_prior"_a,
        "emulation"_a);
  m.def("gd_solve", &gd_solve, "features"_a, "dtype"_a, "rows"_a, "labels"_a, "offsets"_a, "classes"_a,
        options, "lam"_a, "alpha"_a, "temperature"_a, "marginal_weight"_a, "entropy_order"_a, "iterations"_a,
        "lr"_a, "adam_beta1"_a, "adam_beta2"_a, "eps"_a, "tol"_a, "normalize"_a, "probs_size"_a,
        "weights_rows"_a, "history"_a, "class_prior"_a, "emulation"_a);
  m.def("gd_gradient", &gd_gradient, "features"_a, "dtype"_a, "weights"_a, "labels"_a, options, "lam"_a,
        "alpha"_a, "temperature"_a, "marginal_weight"_a, "entropy_order"_a, "class_prior"_a, "emulation"_a);
  m.def("distance_softmax", &distance_softmax<float>, "features"_a.noconvert(), "weights"_a.noconvert(),
        "temperature"_a, options, "emulation"_a);
  m.def("distance_softmax", &distance_softmax<double>, "features"_a.noconvert(), "weights"_a.noconvert(),
        "temperature"_a, options, "emulation"_a);
  m.def("q_update", &q_update<float>, "log_probs"_a.noconvert(), "labels"_a, "alpha"_a, "beta"_a,
        "marginal_weight"_a, options, "emulation"_a);
  m.def("q_update", &q_update<double>, "log_probs"_a.noconvert(), "labels"_a, "alpha"_a, "beta"_a,
        "marginal_weight"_a, options, "emulation"_a);
  m.def("w_update", &w_update<float>, "features"_a.noconvert(), "weights"_a.noconvert(),
        "probs"_a.noconvert(), "assignments"_a.noconvert(), "labels"_a, "lam"_a, "alpha"_a, "beta"_a, options,
        "emulation"_a);
  m.def("w_update", &w_update<double>, "features"_a.noconvert(), "weights"_a.noconvert(),
        "probs"_a.noconvert(), "assignments"_a.noconvert(), "labels"_a, "lam"_a, "alpha"_a, "beta"_a, options,
        "emulation"_a);
  m.def("remove_barrier", &emulation::remove_barrier);
  m.def("take_barrier_counts", &emulation::take_barrier_counts);
}
