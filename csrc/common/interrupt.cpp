#include "common/interrupt.h"

#include <Python.h>

#include <stdexcept>
#include <string>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <pthread.h>
#endif

// A program without Python may load the library, too.
#pragma weak Py_IsInitialized
#pragma weak Py_AddPendingCall
#pragma weak PyErr_CheckSignals
#pragma weak PyErr_Fetch
#pragma weak PyErr_Restore
#pragma weak PyGILState_Ensure
#pragma weak PyGILState_Release

namespace tim_ext {
namespace {

// What a handler raised, until Python takes it; guarded by the GIL. A C++ exception cannot carry it through torch, which
// makes a RuntimeError of every one of them.
struct Raised {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
} raised;

// Python calls this in its main thread, before the next call or loop there, and raises what it sets.
int hand_over(void*) {
  if (!raised.type) return 0;
  PyErr_Restore(raised.type, raised.value, raised.traceback);
  raised = Raised();
  return -1;
}

bool on_main_thread() {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#elif defined(__APPLE__)
  return pthread_main_np() != 0;
#else
  return false;
#endif
}

}  // namespace

// Threads other than the main one never touch Python: at its exit that would end them in the middle of a solve.
bool run_signal_handlers() {
  if (!on_main_thread() || !Py_IsInitialized || !Py_IsInitialized()) return true;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool fine = PyErr_CheckSignals() == 0;
  if (!fine) {
    Raised now;
    PyErr_Fetch(&now.type, &now.value, &now.traceback);
    if (!raised.type && Py_AddPendingCall(hand_over, nullptr) == 0)
      raised = now;
    else
      PyErr_Restore(now.type, now.value, now.traceback);
  }
  PyGILState_Release(state);
  return fine;
}

void Interrupt::stop() const { throw std::runtime_error(std::string(op_) + ": interrupted by a signal"); }

}  // namespace tim_ext
