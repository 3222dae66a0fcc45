"""The emulation of CUDA: right kernels are right in every schedule, and every mistake is caught.

The kernels are in cuda_emulation/own_kernels.cu; cuda_emulation/build.py says what the three builds can see.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation import build
from helpers.backends import needs_emulation
from helpers.processes import run_python

pytestmark = needs_emulation
both = pytest.mark.parametrize("variant", ["plain", "checked"])
SOURCE = (build.HERE / "own_kernels.cu").read_text()


@pytest.fixture
def run(variant):
    """A kernel on integers, which no order of summation changes."""
    module = build.own_kernels(variant)

    def run_kernel(name, count=128, outputs=128, **launch):
        numbers = np.random.default_rng(0).integers(-50, 50, count).astype(np.float32)
        return numbers, module.run(name, numbers, outputs, **launch)

    return run_kernel


def schedules():
    return range(30)


# Right kernels ----------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("threads", [32, 64, 256, 1024])
def test_block_sum(run, threads):
    for seed in schedules():
        numbers, sums = run(
            "block_sum", 5 * threads - 7, 5, blocks=5, threads=threads, shared_bytes=4 * threads, seed=seed
        )
        padded = np.append(numbers, np.zeros(7))
        assert sums.tolist() == padded.reshape(5, threads).sum(axis=1).tolist()


@both
def test_shuffles(run):
    for seed in schedules():
        numbers, sums = run("butterfly", 256, 256, blocks=2, seed=seed)
        assert sums.tolist() == numbers.reshape(-1, 32).sum(axis=1).repeat(32).tolist()
        numbers, sums = run("warp_scan", seed=seed)
        assert sums.tolist() == numbers.reshape(-1, 32).cumsum(axis=1).ravel().tolist()
        numbers, sums = run("groups_of_eight", seed=seed)
        assert sums[::8].tolist() == numbers.reshape(-1, 8).sum(axis=1).tolist()


@both
def test_halves_of_a_warp_meet_separately(run):
    for seed in schedules():
        numbers, result = run("half_warps", seed=seed)
        warps, expected = numbers.reshape(-1, 32), []
        if (warps[:, 5] < 0).any():  # __syncthreads_or
            assert (result == -1).all()
            continue
        for warp in warps:
            upper = 1.0 if (warp[16:] > 0).all() else 0.5 if (warp[16:] > 0).any() else 0.0
            expected += [warp[3]] * 16 + [upper] * 16
        assert result.tolist() == expected


@both
def test_a_warp_communicates_through_shared_memory(run):
    for seed in schedules():
        numbers, result = run("warp_reverse", shared_bytes=512, seed=seed)
        assert result.tolist() == numbers.reshape(-1, 32)[:, ::-1].ravel().tolist()


@both
def test_a_vector_may_hold_fill(run):
    for seed in schedules():
        numbers, result = run("vectors_of_three", shared_bytes=512, seed=seed)
        assert result.tolist() == [numbers[t // 4 * 4 + t % 3] for t in range(128)]


@both
def test_atomics(run):
    for seed in schedules():
        numbers, result = run("count_positive", 500, 8, blocks=4, seed=seed)
        assert result[0] == (numbers > 0).sum()


@both
def test_blocks_of_a_cooperative_launch_wait_for_each_other(run):
    for seed in schedules():
        numbers, result = run("team", 4, 64 + 4 * 64, blocks=4, threads=64, seed=seed)
        assert result[4:8].tolist() == np.roll(numbers, -1).tolist()


def test_the_order_of_threads_depends_on_the_seed():
    """A kernel with a race gives many results, and each of them again for the same seed."""
    module = build.own_kernels("plain")
    numbers = np.arange(128, dtype=np.float32)

    def results():
        return [
            module.run("missing_barrier", numbers, 128, shared_bytes=512, seed=s).tobytes() for s in range(20)
        ]

    first = results()
    assert len(set(first)) > 15
    assert results() == first


def test_a_missing_barrier_gives_wrong_numbers():
    """Also without any check: the thread that comes too early reads NaN, which is what fresh memory holds."""
    module = build.own_kernels("plain")
    numbers = np.arange(128, dtype=np.float32)
    for seed in range(20):
        result = module.run("missing_barrier", numbers, 128, shared_bytes=512, seed=seed)
        assert np.isnan(result).any()
    right = 4 * numbers[::-1] + 6
    wrong = [
        module.run("missing_second_barrier", numbers, 128, shared_bytes=512, seed=seed).tolist()
        != right.tolist()
        for seed in range(20)
    ]
    assert sum(wrong) > 10


# Mistakes ------------------------------------------------------------------------------------------------


def line_of(text: str, after: str) -> int:
    """The line of the kernels' source that holds `text`, in the kernel `after`."""
    start = SOURCE.index(f"void {after}(")
    return SOURCE.count("\n", 0, SOURCE.index(text, start)) + 1


RULES = {  # mistakes that every build catches: name -> message
    "two_barriers": r"waits at __syncthreads at own_kernels.cu:\d+, but other threads of the block wait at",
    "ended_before_barrier": r"but other threads of the block (have ended|wait at __syncthreads)",
    "barrier_and_shuffle": r"__syncthreads at .*(__shfl_sync|ended)|__shfl_sync.*wait at __syncthreads",
    "not_in_its_mask": r"lane 31 is not in its own mask 0x7fffffff",
    "shuffle_from_outside": r"reads from lane 20, which is not in the mask 0x0000ffff",
    "shuffle_from_ended": r"lanes that have ended, 0x80000000|ended, but other lanes of its warp wait for it",
    "different_masks": r"other lanes of this mask wait in __shfl_sync at .*, mask 0x",
    "waits_for_ever": r"waits for ever",
}


@both
@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule(run, name):
    for seed in range(1 if name == "waits_for_ever" else 10):
        with pytest.raises(RuntimeError, match=RULES[name]) as error:
            run(name, outputs=200, shared_bytes=512, seed=seed)
        assert re.match(r"block 0, thread \d+: ", str(error.value))


@both
def test_the_thread_that_ended_is_named(run):
    messages = set()
    for seed in range(200):
        with pytest.raises(RuntimeError) as error:
            run("ended_before_barrier", seed=seed)
        messages.add(str(error.value))
    assert any(message.startswith("block 0, thread 77: ended, but") for message in messages)


@both
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("shared_overrun", r"0 bytes behind the end of the shared memory of block 2 \(512 bytes\)"),
        ("red_zone_overrun", r"byte 0 of a red zone at byte 64 of the shared memory of block [012]"),
    ],
)
def test_a_write_beyond_an_array_of_shared_memory(run, name, word):
    pattern = word.replace("block 2", "block [012]")
    with pytest.raises(RuntimeError, match=pattern):
        run(name, blocks=3, shared_bytes=512, outputs=384)


@both
def test_a_write_beyond_an_array_of_global_memory(run):
    with pytest.raises(RuntimeError, match=r"0 bytes behind the end of the output \(512 bytes\)"):
        run("global_overrun", blocks=2)


ACCESSES = {  # what only the checked build sees: name -> (message, the text of its line)
    "missing_barrier": ("never written|race: read of .* and a write at", "out[t] = s["),
    "missing_second_barrier": ("race: ", "sum += s["),
    "missing_warp_barrier": ("never written|race: read of .* and a write at", "out[t] = s["),
    "shuffle_as_barrier": ("race: read of .* and a write at", "out[t] = s["),
    "shared_overrun": (
        "thread 127: out of bounds: write to 0 bytes behind the end of the shared",
        "s[t + 1] =",
    ),
    "shared_overread": ("thread 127: out of bounds: read of 0 bytes behind the end of the shared", "out["),
    "red_zone_overrun": ("thread 16: out of bounds: write to byte 0 of a red zone", "first[threadIdx.x] = "),
    "vector_overread": (
        "thread 124: out of bounds: read of 0 bytes behind the end of the shared",
        "float4 v",
    ),
    "global_overread": ("thread 127: out of bounds: read of 0 bytes behind the end of the input", "out["),
    "never_written": ("thread 8: read of byte 36 of the shared memory .* which was never written", "out[t]"),
    "writes_its_input": ("write to the input byte", "const_cast"),
    "misaligned_vector": ("misaligned", "const float4 v"),
    "local_overrun": ("index out of bounds", "local[(j"),
    "host_pointer": ("memory that is not on the device", "{ out["),
    "reads_a_counter": ("race: .*an atomic operation at|race: .*a read at", ""),
}


@pytest.mark.parametrize("variant", ["checked"])
@pytest.mark.parametrize("name", ACCESSES)
def test_a_wrong_access(run, name):
    message, text = ACCESSES[name]
    for seed in range(5):
        with pytest.raises(RuntimeError, match=message) as error:
            run(
                name,
                outputs=200 if name in ("host_pointer", "reads_a_counter") else 128,
                shared_bytes=512,
                seed=seed,
            )
        assert re.match(r"block 0, thread \d+: ", str(error.value))
        if text and name != "missing_second_barrier":  # which is seen by the reader or by the writer
            assert f"own_kernels.cu:{line_of(text, name)}" in str(error.value)


@pytest.mark.parametrize("variant", ["checked"])
def test_accesses_of_two_blocks(run):
    for seed in range(5):
        with pytest.raises(RuntimeError, match=r"race: write to byte 0 of the output .* a write at"):
            run("blocks_talk", blocks=3, threads=1, seed=seed)
        with pytest.raises(RuntimeError, match=r"race: read of .* and a write at .* by block \d"):
            run("team_without_fence", 4, 64 + 4 * 64, blocks=4, threads=64, seed=seed)


@pytest.mark.parametrize("variant", ["checked"])
def test_a_barrier_that_is_taken_away(run):
    module = build.own_kernels("checked")
    sites = [f"own_kernels.cu:{line_of('__syncthreads();', 'block_sum') + extra}" for extra in (0, 3)]
    launch = {"blocks": 2, "shared_bytes": 512}
    module.take_barrier_counts()
    run("block_sum", 256, 2, **launch)
    assert module.take_barrier_counts() == dict(zip(sites, (2, 14), strict=True))
    for site in sites:
        module.remove_barrier(site)
        try:
            with pytest.raises(RuntimeError, match=r"race|never written"):
                run("block_sum", 256, 2, **launch)
        finally:
            module.remove_barrier("")
    run("block_sum", 256, 2, **launch)


# Launches -------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("name", "launch", "message"),
    [
        ("butterfly", {"blocks": 0}, "blocks, got 0"),
        ("butterfly", {"threads": 1025}, "threads, got 1025"),
        ("butterfly", {"shared_bytes": 49153}, "only 49152 were asked for with cudaFuncSetAttribute"),
        ("butterfly", {"shared_bytes": 101377}, "the device has 101376 for a block"),
        ("allowed_shared_memory", {"shared_bytes": 101377}, "cudaFuncSetAttribute: 101377 bytes"),
        ("team", {"blocks": 5}, "5 blocks that wait for each other, but the device has 4 processors"),
    ],
)
def test_a_launch_that_no_device_takes(run, name, launch, message):
    with pytest.raises(RuntimeError, match=message):
        run(name, outputs=2000, **launch)


@both
def test_shared_memory_that_was_asked_for(run):
    run("allowed_shared_memory", shared_bytes=101376)


def test_float_atomics_do_not_compile(tmp_path: Path):
    """The kernels are deterministic; a sum of floats in the order of arrival is not."""
    template = '#include "emulation.h"\nvoid f({0}* to, {0} value) {{ atomicAdd(to, value); }}\n'
    for kind, fine in [("int", True), ("unsigned", True), ("float", False), ("double", False)]:
        source = tmp_path / f"{kind}.cpp"
        source.write_text(template.format(kind))
        command = [build.COMPILER, "-std=c++17", "-fsyntax-only", f"-I{build.HERE}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode == 0) == fine, done.stderr
        assert fine or "atomicAdd" in done.stderr


# AddressSanitizer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "thread"),
    [("shared_overrun", 127), ("shared_overread", 127), ("red_zone_overrun", 16), ("global_overread", 127)],
)
def test_address_sanitizer_names_the_thread(name, thread):
    build.own_kernels_path("address")  # built by this process, which has no sanitizer
    program = (
        f"import sys, numpy; sys.path.insert(0, {str(build.HERE.parent)!r})\n"
        "from cuda_emulation import build\n"
        "kernels = build.own_kernels('address')\n"
        "def run(name): return kernels.run(name, numpy.ones(128, numpy.float32), 128, shared_bytes=512)\n"
        "assert (run('butterfly') == 32).all() and run('block_sum')[0] == 128\n"
        "print('right kernels run', flush=True)\n"
        f"run({name!r})\n"
    )
    done = run_python("-c", program, **build.address_environment())
    assert "right kernels run" in done.stdout, done.stderr
    assert done.returncode != 0
    assert "AddressSanitizer: use-after-poison" in done.stderr
    assert f"in block 0, thread {thread} " in done.stderr
