"""A native solve ends at a signal: each of these would run for days, and the test ends when all have."""

from __future__ import annotations

import signal
import subprocess

import pytest
from helpers.forked import run_script

PRELUDE = """
import os, signal, sys, threading, time, torch, tim_ext
from tim_ext import baselines, distributed

torch.set_num_threads(int(sys.argv[1]))
signal.signal(signal.SIGINT, signal.default_int_handler)
DAYS = 10**9
draw = torch.Generator().manual_seed(0)

def task(n, d=16, K=5):
    labels = torch.full((n,), -1)
    labels[: 2 * K] = torch.arange(2 * K) % K
    return torch.randn(n, d, generator=draw), labels

def interrupted(name, solve, expected=KeyboardInterrupt):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        solve()
    except BaseException as error:
        assert type(error) is expected, (name, repr(error))
        assert not isinstance(error.__context__, RuntimeError), repr(error.__context__)
    else:
        raise AssertionError(name)
    timer.join()
    print(name, flush=True)
"""

CASES = {
    "primal": "lambda: tim_ext.adm(*task(3000), form='primal', iterations=DAYS)",
    "dual": "lambda: tim_ext.adm(*task(1500), form='dual', iterations=DAYS)",
    "one small task": "lambda: tim_ext.adm(*task(100, 64), iterations=DAYS)",
    "gd": "lambda: tim_ext.gd(*task(3000), iterations=DAYS)",
    "history and tol": "lambda: tim_ext.adm(*task(300), iterations=10**7, tol=1e-30)",
    # the calling thread has the small task, or none, and waits for the others
    "unequal tasks": "lambda: tim_ext.adm([task(n)[0] for n in (20, 900, 1000)], "
    "[task(n)[1] for n in (20, 900, 1000)], iterations=10**7)",
    # each of them takes a millisecond
    "many tasks": "lambda: tim_ext.adm(torch.zeros(1, 8).expand(1, 8).contiguous() + 1, "
    "task(40)[1].expand(1_000_000, 40), index=torch.zeros(1_000_000, 40, dtype=torch.int64), "
    "iterations=3000)",
    "inference mode": "lambda: torch.inference_mode()(tim_ext.adm)(*task(500), iterations=DAYS)",
    "estimator": "lambda: tim_ext.TIMClassifier(iterations=DAYS).fit(*map(torch.Tensor.numpy, task(500)))",
    "baseline": "lambda: baselines.alpha_tim(*task(500), iterations=DAYS)",
    "plain baseline": "lambda: baselines.pt_map(*task(500), iterations=DAYS)",
    "reference": "lambda: tim_ext.reference.adm(*task(500), iterations=10**6)",
    "finetune": "lambda: tim_ext.finetune(torch.nn.Linear(16, 8), *task(50), iterations=10**7)",
    "evaluate": "lambda: tim_ext.evaluate(torch.randn(2000, 16, generator=draw), torch.arange(2000) % 20, "
    "methods=['tim-adm'], hyper={'tim-adm': {'iterations': DAYS}})",
    "distributed": "lambda: distributed.adm(*task(500), iterations=10**6)",
}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Within a minute, where one solve would take days."""
    return run_script(PRELUDE + script, *arguments, timeout=100)


@pytest.mark.parametrize("threads", ["3", pytest.param("1", marks=pytest.mark.slow)])
def test_every_solve_can_be_interrupted(threads):
    # what imports more at its first use, so that the signal finds a solve and no import
    first = "tim_ext.TIMClassifier\ntim_ext.finetune(torch.nn.Linear(16, 8), *task(50), iterations=1)\n"
    ended = run(first + "".join(f"interrupted({name!r}, {call})\n" for name, call in CASES.items()), threads)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines() == list(CASES)


def test_the_process_ends_as_at_any_ctrl_c(run_python):
    script = """
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
tim_ext.adm(*task(3000), iterations=DAYS)
"""
    ended = run_python("-c", PRELUDE + script, "2")
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "RuntimeError" not in ended.stderr


def test_what_the_handler_of_a_signal_raises_is_raised():
    script = """
def too_late(number, frame):
    raise TimeoutError("0.2 s")

signal.signal(signal.SIGALRM, too_late)
for call in (tim_ext.adm, tim_ext.gd):
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        call(*task(500), iterations=DAYS)
    except TimeoutError as error:
        print(error)
calls = []
signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
features, labels = task(3000)
solved = tim_ext.adm(features, labels, form="primal", iterations=20_000)
signal.setitimer(signal.ITIMER_REAL, 0)
again = tim_ext.adm(features, labels, form="primal", iterations=20_000)
print(len(calls) > 0, torch.equal(solved.probs, again.probs))
"""
    ended = run(script, "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["0.2 s", "0.2 s", "True True"]


def test_an_interrupted_solve_leaves_nothing_behind():
    """Neither memory nor a changed result; 30 x 25 MB would show."""
    script = """
import resource
features, labels = task(60_000, 64)
before = tim_ext.adm(features[:500], labels[:500], iterations=50).probs
for turn in range(32):
    if turn == 2:
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        tim_ext.adm(features, labels, iterations=DAYS)
    except KeyboardInterrupt:
        pass
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start  # KB
assert grown < 200_000, grown
assert torch.equal(before, tim_ext.adm(features[:500], labels[:500], iterations=50).probs)
print("done")
"""
    ended = run("signal.signal(signal.SIGALRM, signal.default_int_handler)" + script, "2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "done\n"


def test_other_threads_are_left_alone():
    """Signals belong to the main thread; a solve elsewhere goes on, and the process can still end."""
    script = """
small = task(500)
results = []
short = threading.Thread(target=lambda: results.append(tim_ext.adm(*small, form="primal", iterations=20_000)))
endless = threading.Thread(target=tim_ext.adm, args=task(500), kwargs={"iterations": DAYS}, daemon=True)
short.start()
endless.start()
interrupted("waiting", lambda: time.sleep(60))
while not results:
    time.sleep(0.01)
assert torch.equal(results[0].probs, tim_ext.adm(*small, form="primal", iterations=20_000).probs)
interrupted("next to it", lambda: tim_ext.adm(*task(500), iterations=DAYS))
"""
    ended = run(script, "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "waiting\nnext to it\n"


def test_operators_and_compiled_code():
    """torch makes a RuntimeError of the interruption; Python raises KeyboardInterrupt right after it."""
    script = """
features, labels = task(500)
arguments = features, None, labels, torch.tensor([0, 500]), torch.tensor([5])
options = dict(lam=0.1, alpha=0.1, beta=1.0, temperature=15.0, marginal_weight=1.0, smoothing=0.0,
               relaxation=1.0, tol=0.0, normalize=True, form="primal", probs_size=2500, weights_rows=5,
               proportions_size=5, history=False)
for mode in ("operator", "eager", "aot_eager"):
    call = lambda: torch.ops.tim_ext.adm_solve(*arguments, **options)
    call = call if mode == "operator" else torch.compile(call, backend=mode, fullgraph=True)
    options["iterations"] = 1
    call()  # compiles, if need be
    options["iterations"] = DAYS
    try:
        threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            call()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
            print("not reached")
    except KeyboardInterrupt:
        print(mode)
"""
    ended = run(script, "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["operator", "eager", "aot_eager"]
