// Ctrl-C, or whatever else Python's signal handlers raise, during a call that Python waits for.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace tim_ext {

// Runs the handlers of the signals that Python has received, if this is the main thread of the process: they run there or
// nowhere. False if one of them raised: Python raises that as soon as it is back in its own code.
bool run_signal_handlers();

// Of one call of an operator, made on the thread that Python called it on.
class Interrupt {
 public:
  explicit Interrupt(const char* op) : op_(op) {}
  Interrupt(const Interrupt&) = delete;

  // To be called every so often: the calling thread asks Python every 50 ms, the others follow it. Throws where it was interrupted.
  void pause() {
    if (std::this_thread::get_id() == caller_ && Clock::now() >= next_) {
      if (!run_signal_handlers()) stopped_ = true;
      next_ = Clock::now() + std::chrono::milliseconds(50);
    }
    if (stopped_) stop();
  }
  static void ask(void* self) { static_cast<Interrupt*>(self)->pause(); }

 private:
  using Clock = std::chrono::steady_clock;

  [[noreturn]] void stop() const;

  const char* op_;
  const std::thread::id caller_ = std::this_thread::get_id();
  Clock::time_point next_ = Clock::now() + std::chrono::milliseconds(50);
  std::atomic<bool> stopped_{false};
};

}  // namespace tim_ext
