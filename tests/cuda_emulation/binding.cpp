// The CUDA operators under emulation as a Python module: numpy arrays in, numpy arrays out. Arguments and results are
// those of csrc/ops.cpp, hyper-parameters by keyword; half types come as uint16 arrays with their name. Every array is
// copied into device memory of exactly its size, and results start as garbage.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "common/equations.h"
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

// The keyword arguments of a call, each taken once.
struct Keywords {
  py::dict left;

  explicit Keywords(const py::kwargs& given) : left(given) {}
  template <class T = double>
  T take(const char* name) {
    return left.attr("pop")(name).template cast<T>();
  }
  void end() const {
    if (!left.empty()) throw py::type_error("unknown arguments: " + std::string(py::str(left)));
  }
};

int64_t pauses = 0;  // between the slices of all calls

// How one call is emulated.
struct Run {
  uint64_t seed;
  int processors, shared_per_block, resident;
  double slice;

  // The last of the keyword arguments.
  static Run start(Keywords& keywords) {
    const py::dict emulation = keywords.take<py::dict>("emulation");
    keywords.end();
    const Run run{emulation["seed"].cast<uint64_t>(), emulation["processors"].cast<int>(),
                  emulation["shared_per_block"].cast<int>(), emulation["resident"].cast<int>(),
                  emulation["slice"].cast<double>()};
    emulation::release_all();
    emulation::configure({run.seed, run.processors, run.shared_per_block, run.resident});
    return run;
  }
  tim_ext::cuda::Device device() const {
    tim_ext::cuda::Device device{processors, shared_per_block, {}};
    device.pace.slice = slice;
    device.pace.between = [](void*, cudaStream_t) { ++pauses; };
    return device;
  }
};

// As far from an aligned address as the array is.
template <class T = void>
const T* input(const char* name, const py::array& array) {
  const size_t bytes = size_t(array.nbytes()), before = reinterpret_cast<uintptr_t>(array.data()) % 16;
  unsigned char* memory = emulation::allocate(name, before + bytes, Use::input);
  if (before > 0) emulation::forbid_bytes(memory, before, true);
  memory += before;
  std::memcpy(memory, array.data(), bytes);
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

using Prior = std::optional<Array<double>>;
using FirstWeights = std::optional<py::array>;
using OfSamples = std::optional<py::array>;

tim_ext::AdmParams adm_params(Keywords& keywords) {
  const std::string form = keywords.take<std::string>("form");
  tim_ext::AdmParams p;
  p.lam = keywords.take("lam");
  p.alpha = keywords.take("alpha");
  p.beta = keywords.take("beta");
  p.temperature = keywords.take("temperature");
  const auto marginal_weight = keywords.take<std::optional<double>>("marginal_weight"),
             smoothing = keywords.take<std::optional<double>>("smoothing"),
             relaxation = keywords.take<std::optional<double>>("relaxation");
  p.decides_marginal = !marginal_weight;
  p.marginal_weight = marginal_weight.value_or(tim_ext::kUndecidedMarginal);
  p.smooths_by_shots = !smoothing;
  p.smoothing = smoothing.value_or(tim_ext::kNotGiven);
  p.chooses_steps = !relaxation;
  p.relaxation = relaxation.value_or(tim_ext::kNotGiven);
  p.sample_prior_weight = keywords.take("sample_prior_weight");
  p.iterations = keywords.take<int64_t>("iterations");
  p.tol = keywords.take("tol");
  p.normalize = keywords.take<bool>("normalize");
  p.form = form == "auto"   ? tim_ext::Form::automatic
           : form == "dual" ? tim_ext::Form::dual
                            : tim_ext::Form::primal;
  return p;
}

// What the loss of TIM has.
tim_ext::GdParams loss_params(Keywords& keywords) {
  tim_ext::GdParams p;
  p.lam = keywords.take("lam");
  p.alpha = keywords.take("alpha");
  p.temperature = keywords.take("temperature");
  p.marginal_weight = keywords.take("marginal_weight");
  p.entropy_order = keywords.take("entropy_order");
  return p;
}
tim_ext::GdParams gd_params(Keywords& keywords) {
  tim_ext::GdParams p = loss_params(keywords);
  p.sample_prior_weight = keywords.take("sample_prior_weight");
  p.iterations = keywords.take<int64_t>("iterations");
  p.lr = keywords.take("lr");
  p.adam_beta1 = keywords.take("adam_beta1");
  p.adam_beta2 = keywords.take("adam_beta2");
  p.eps = keywords.take("eps");
  p.tol = keywords.take("tol");
  p.normalize = keywords.take<bool>("normalize");
  return p;
}

// A solver: probs, predictions, weights, iterations, history, proportions, marginal_weights, status
template <class Params, class Bytes, class Solve>
py::tuple solve(const py::array& features, const std::string& dtype, const std::optional<Integers>& rows,
                const Integers& labels, const Integers& offsets, const Integers& classes,
                const Params& params, Keywords& keywords, Bytes bytes, Solve solver) {
  const auto probs_size = keywords.take<py::ssize_t>("probs_size"),
             weights_rows = keywords.take<py::ssize_t>("weights_rows"),
             proportions_size = keywords.take<py::ssize_t>("proportions_size");
  const bool history = keywords.take<bool>("history");
  const Prior class_prior = keywords.take<Prior>("class_prior");
  const FirstWeights first_weights = keywords.take<FirstWeights>("weights");
  const OfSamples sample_weight = keywords.take<OfSamples>("sample_weight"),
                  sample_log_prior = keywords.take<OfSamples>("sample_log_prior");
  const Run run = Run::start(keywords);
  tim_ext::Batch batch;
  batch.dtype = dtype_of(dtype);
  batch.features = input("features", features);
  batch.pool_rows = features.shape(0);
  batch.dim = features.shape(1);
  batch.rows = rows ? input<int64_t>("rows", *rows) : nullptr;
  batch.labels = input<int64_t>("labels", labels);
  batch.offsets = offsets.data();
  batch.classes = classes.data();
  batch.class_prior = class_prior ? class_prior->data() : nullptr;
  batch.weights = first_weights ? input("the first weights", *first_weights) : nullptr;
  batch.sample_weight = sample_weight ? input("sample_weight", *sample_weight) : nullptr;
  batch.sample_log_prior = sample_log_prior ? input("sample_log_prior", *sample_log_prior) : nullptr;
  batch.tasks = classes.size();
  const py::dtype real = real_of(batch.dtype), integer = py::dtype::of<int64_t>();
  const py::ssize_t length = history ? params.iterations + 1 : 0;
  Output probs("probs", real, {probs_size}, run), predictions("predictions", integer, {labels.size()}, run),
      weights("weights", real, {weights_rows, batch.dim}, run),
      iterations("iterations", integer, {batch.tasks}, run),
      terms("history", real, {batch.tasks, length, tim_ext::history_terms(batch)}, run),
      proportions("proportions", real, {proportions_size}, run),
      marginal_weights("marginal_weights", real, {batch.tasks}, run),
      status("status", integer, {batch.tasks, 3}, run);
  tim_ext::Outputs outputs;
  outputs.probs = probs.pointer();
  outputs.predictions = predictions.pointer<int64_t>();
  outputs.weights = weights.pointer();
  outputs.iterations = iterations.pointer<int64_t>();
  outputs.history = terms.pointer();
  outputs.proportions = proportions.pointer();
  outputs.marginal_weights = marginal_weights.pointer();
  outputs.status = status.pointer<int64_t>();
  solver(batch, params, outputs, workspace(bytes(batch, params, run.device())), run.device(), nullptr);
  emulation::throw_host_problem();
  return py::make_tuple(probs.fetch(), predictions.fetch(), weights.fetch(), iterations.fetch(),
                        terms.fetch(), proportions.fetch(), marginal_weights.fetch(), status.fetch());
}

py::tuple adm_solve(const py::array& features, const std::string& dtype, const std::optional<Integers>& rows,
                    const Integers& labels, const Integers& offsets, const Integers& classes,
                    const py::kwargs& given) {
  Keywords keywords(given);
  const tim_ext::AdmParams params = adm_params(keywords);
  return solve(features, dtype, rows, labels, offsets, classes, params, keywords,
               tim_ext::cuda::adm_workspace, tim_ext::cuda::adm_solve);
}

py::tuple gd_solve(const py::array& features, const std::string& dtype, const std::optional<Integers>& rows,
                   const Integers& labels, const Integers& offsets, const Integers& classes,
                   const py::kwargs& given) {
  Keywords keywords(given);
  const tim_ext::GdParams params = gd_params(keywords);
  return solve(features, dtype, rows, labels, offsets, classes, params, keywords, tim_ext::cuda::gd_workspace,
               tim_ext::cuda::gd_solve);
}

// loss [T], terms [T, 3], gradient [T, K, d], status [T, 3] of features [T, N, d], weights [T, K, d], labels [T, N]
py::tuple gd_gradient(const py::array& features, const std::string& dtype, const py::array& weights,
                      const Integers& labels, const py::kwargs& given) {
  Keywords keywords(given);
  const tim_ext::GdParams params = loss_params(keywords);
  const Prior class_prior = keywords.take<Prior>("class_prior");
  const Run run = Run::start(keywords);
  const py::ssize_t tasks = features.shape(0), samples = features.shape(1), classes = weights.shape(1);
  std::vector<int64_t> offsets(size_t(tasks) + 1), counts(size_t(tasks), classes);
  for (py::ssize_t t = 0; t <= tasks; ++t) offsets[size_t(t)] = t * samples;
  tim_ext::Batch batch;
  batch.dtype = dtype_of(dtype);
  batch.features = input("features", features);
  batch.pool_rows = tasks * samples;
  batch.dim = features.shape(2);
  batch.labels = input<int64_t>("labels", labels);
  batch.offsets = offsets.data();
  batch.classes = counts.data();
  batch.class_prior = class_prior ? class_prior->data() : nullptr;
  batch.tasks = tasks;
  const py::dtype real = real_of(batch.dtype);
  Output gradient("gradient", real, {tasks, classes, batch.dim}, run), terms("terms", real, {tasks, 3}, run),
      loss("loss", real, {tasks}, run), status("status", py::dtype::of<int64_t>(), {tasks, 3}, run);
  tim_ext::Gradient out;
  out.weights = input("weights", weights);
  out.gradient = gradient.pointer();
  out.terms = terms.pointer();
  out.loss = loss.pointer();
  out.status = status.pointer<int64_t>();
  tim_ext::cuda::gd_gradient(batch, params, out,
                             workspace(tim_ext::cuda::gd_workspace(batch, params, run.device())),
                             run.device(), nullptr);
  emulation::throw_host_problem();
  return py::make_tuple(loss.fetch(), terms.fetch(), gradient.fetch(), status.fetch());
}

tim_ext::StepShape step_shape(const py::array& features, const py::array& weights) {
  tim_ext::StepShape s;
  s.tasks = features.shape(0);
  s.samples = features.shape(1);
  s.classes = weights.shape(1);
  s.dim = features.shape(2);
  return s;
}

template <class T>
py::tuple distance_softmax(const Array<T>& features, const Array<T>& weights, const py::kwargs& given) {
  Keywords keywords(given);
  tim_ext::AdmParams params;
  params.temperature = keywords.take("temperature");
  const Run run = Run::start(keywords);
  const tim_ext::StepShape s = step_shape(features, weights);
  Output probs("probs", features.dtype(), {s.tasks, s.samples, s.classes}, run),
      log_probs("log_probs", features.dtype(), {s.tasks, s.samples, s.classes}, run);
  tim_ext::DistanceSoftmax<T> step;
  step.shape = s;
  step.c = tim_ext::adm_coefficients<T>(params);
  step.features = input<T>("features", features);
  step.weights = input<T>("weights", weights);
  step.probs = probs.pointer<T>();
  step.log_probs = log_probs.pointer<T>();
  tim_ext::cuda::distance_softmax(step, nullptr);
  emulation::throw_host_problem();
  return py::make_tuple(probs.fetch(), log_probs.fetch());
}

template <class T>
py::array q_update(const Array<T>& log_probs, const Integers& labels, const py::kwargs& given) {
  Keywords keywords(given);
  tim_ext::AdmParams params;
  params.alpha = keywords.take("alpha");
  params.beta = keywords.take("beta");
  params.marginal_weight = keywords.take("marginal_weight");
  const Run run = Run::start(keywords);
  tim_ext::QUpdate<T> step;
  step.shape.tasks = log_probs.shape(0);
  step.shape.samples = log_probs.shape(1);
  step.shape.classes = log_probs.shape(2);
  step.c = tim_ext::adm_coefficients<T>(params);
  Output assignments("assignments", log_probs.dtype(),
                     {log_probs.shape(0), log_probs.shape(1), log_probs.shape(2)}, run);
  step.log_probs = input<T>("log_probs", log_probs);
  step.labels = input<int64_t>("labels", labels);
  step.assignments = assignments.pointer<T>();
  tim_ext::cuda::q_update(step, nullptr);
  emulation::throw_host_problem();
  return assignments.fetch();
}

template <class T>
py::array w_update(const Array<T>& features, const Array<T>& weights, const Array<T>& probs,
                   const Array<T>& assignments, const Integers& labels, const py::kwargs& given) {
  Keywords keywords(given);
  tim_ext::AdmParams params;
  params.lam = keywords.take("lam");
  params.alpha = keywords.take("alpha");
  params.beta = keywords.take("beta");
  const Run run = Run::start(keywords);
  tim_ext::WUpdate<T> step;
  step.shape = step_shape(features, weights);
  step.c = tim_ext::adm_coefficients<T>(params);
  Output out("the new weights", features.dtype(), {step.shape.tasks, step.shape.classes, step.shape.dim},
             run);
  step.features = input<T>("features", features);
  step.weights = input<T>("weights", weights);
  step.probs = input<T>("probs", probs);
  step.assignments = input<T>("assignments", assignments);
  step.labels = input<int64_t>("labels", labels);
  step.out = out.pointer<T>();
  tim_ext::cuda::w_update(step, nullptr);
  emulation::throw_host_problem();
  return out.fetch();
}

template <class T>
void define_steps(py::module_& m) {
  m.def("distance_softmax", &distance_softmax<T>, "features"_a.noconvert(), "weights"_a.noconvert());
  m.def("q_update", &q_update<T>, "log_probs"_a.noconvert(), "labels"_a);
  m.def("w_update", &w_update<T>, "features"_a.noconvert(), "weights"_a.noconvert(), "probs"_a.noconvert(),
        "assignments"_a.noconvert(), "labels"_a);
}

}  // namespace

PYBIND11_MODULE(TIM_EXT_MODULE, m) {
  m.def("adm_solve", &adm_solve, "features"_a, "dtype"_a, "rows"_a, "labels"_a, "offsets"_a, "classes"_a);
  m.def("gd_solve", &gd_solve, "features"_a, "dtype"_a, "rows"_a, "labels"_a, "offsets"_a, "classes"_a);
  m.def("gd_gradient", &gd_gradient, "features"_a, "dtype"_a, "weights"_a, "labels"_a);
  define_steps<float>(m);
  define_steps<double>(m);
  m.def("take_pauses", [] { return std::exchange(pauses, 0); });
  m.def("remove_barrier", &emulation::remove_barrier);
  m.def("take_barrier_counts", &emulation::take_barrier_counts);
}
