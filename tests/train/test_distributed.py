"""Several processes give what one gives."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

pytest.importorskip("safetensors")
pytest.importorskip("tqdm")

from helpers.paths import ROOT
from helpers.train_runs import arguments, run_together, start_together, write_arrays

from python_train import distributed, extract, train
from python_train.distributed import World
from tim_ext.files.tensors import read_tensors


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("data"))


def make_norms() -> nn.Module:
    """Batch-norm of images and of vectors, with and without its options, around layers that mix channels."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.Tanh(),
        nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5, affine=False, track_running_stats=False),
        nn.Flatten(),
        nn.Linear(5 * 16, 6),
        nn.BatchNorm1d(6, momentum=None, eps=1e-3),
        nn.Linear(6, 1),
    ).double()


def inputs() -> torch.Tensor:
    return torch.randn(7, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3 + 1


def norm_of_a_part(results) -> None:
    """In a process of two: two training steps on its part of 7 samples, then the output without training."""
    with distributed.start("cpu") as world:
        network = distributed.synchronize_batch_norm(make_norms(), world)
        x = inputs()[world.part(7)].requires_grad_()
        for _ in range(2):
            outputs = network(x)
            (outputs**2).sum().backward()
        for parameter in network.parameters():
            dist.all_reduce(parameter.grad)
        network.eval()
        tensors = dict(network.state_dict())
        tensors |= {f"grad.{name}": p.grad for name, p in network.named_parameters()}
        tensors |= {"outputs": outputs.detach(), "x.grad": x.grad, "eval": network(x).detach()}
        results.put((world.rank, {name: value.numpy() for name, value in tensors.items()}))


def test_batch_norm_over_all_processes_is_batch_norm_of_the_whole_batch():
    """Outputs, gradients, running statistics, in float64, with parts of 3 and 4 samples."""
    results, processes = start_together(norm_of_a_part, 2)
    parts = dict(results.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    network, x = make_norms(), inputs().requires_grad_()
    for _ in range(2):
        outputs = network(x)
        (outputs**2).sum().backward()
    network.eval()
    expected = dict(network.state_dict()) | {f"grad.{name}": p.grad for name, p in network.named_parameters()}
    expected |= {"outputs": outputs.detach(), "x.grad": x.grad, "eval": network(x).detach()}
    assert expected.keys() == parts[0].keys()
    for name, value in expected.items():
        whole = name in ("outputs", "x.grad", "eval")
        for rank in (0, 1):
            part = slice(7 * rank // 2, 7 * (rank + 1) // 2) if whole else slice(None)
            got = torch.from_numpy(parts[rank][name])
            torch.testing.assert_close(
                got, value[part] if whole else value, rtol=1e-9, atol=1e-11, msg=f"{name} of process {rank}"
            )


def test_only_batch_norm_is_replaced():
    network = make_norms()
    before = copy.deepcopy(network.state_dict())
    distributed.synchronize_batch_norm(network, World(0, 2, torch.device("cpu")))
    kinds = [type(module).__name__ for module in network]
    assert kinds.count("WholeBatchNorm") == 3
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())
    assert network.state_dict().keys() == before.keys()
    same = make_norms()
    assert distributed.synchronize_batch_norm(same, World(0, 1, torch.device("cpu"))) is same
    assert isinstance(same[1], nn.BatchNorm2d)


@pytest.mark.parametrize("count", [1, 7, 40, 250])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_make_up_the_whole(count, size):
    parts = [list(range(count))[World(rank, size, torch.device("cpu")).part(count)] for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def assert_close_runs(one, other, tolerance: float) -> None:
    tensors, description = read_tensors(one / "last.safetensors")
    others, other_description = read_tensors(other / "last.safetensors")
    assert tensors.keys() == others.keys()
    moved = 0.0
    for name, tensor in tensors.items():
        torch.testing.assert_close(others[name], tensor, rtol=tolerance, atol=tolerance, msg=name)
        moved = max(moved, float(tensor.abs().max()))
    assert moved > 100 * tolerance
    rows, other_rows = (item["progress"]["rows"] for item in (description, other_description))
    assert len(rows) == len(other_rows) > 0
    for row, other_row in zip(rows, other_rows, strict=True):
        assert row["loss"] == pytest.approx(other_row["loss"], rel=10 * tolerance)
        assert row["validation_accuracy"] == pytest.approx(other_row["validation_accuracy"], abs=0.03)


LENGTHS = {
    "classes": ["--iterations", "6", "--batch-size", "41", "--validate-every", "4"],  # parts of 20 and 21
    "episodes": [
        "--episodic",
        "--iterations",
        "4",
        "--ways",
        "5",
        "--shots",
        "2",
        "--queries",
        "3",
        "--episodes",
        "1",
    ],
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_two_processes_train_as_one(data, tmp_path, kind):
    length = [*LENGTHS[kind], "--lr", "0.02"]
    assert train.main(arguments(data, tmp_path / "one", length=length)) == 0
    assert run_together(arguments(data, tmp_path / "two", length=length), 2) == [0, 0]
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-5 if kind == "classes" else 5e-4)


def test_a_run_of_one_process_goes_on_in_two(data, tmp_path):
    length = [*LENGTHS["classes"], "--lr", "0.02"]
    assert train.main(arguments(data, tmp_path / "one", length=length)) == 0
    with pytest.MonkeyPatch.context() as patch:
        step = train.Run.step

        def interrupted(self, *inputs):
            if self.progress.step == 3:
                raise KeyboardInterrupt
            step(self, *inputs)

        patch.setattr(train.Run, "step", interrupted)
        some = arguments(data, tmp_path / "two", "--checkpoint-every", "1", length=length)
        assert train.main(some) == 130
    assert run_together(some, 2) == [0, 0]
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-5)


def test_fewer_images_than_processes(data, tmp_path):
    length = ["--iterations", "2", "--batch-size", "1"]
    assert run_together(arguments(data, tmp_path, length=length), 2) == [2, 2]


@pytest.mark.slow
def test_torchrun(data, tmp_path):
    """The real launcher: train on two processes, extract on two, both as on one."""
    length = [*LENGTHS["classes"], "--lr", "0.02"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    two = arguments(data, tmp_path / "two", length=length)
    ended = subprocess.run(
        [*torchrun, "python_train.train", *two], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("finished") == 1  # the first process speaks
    assert train.main(arguments(data, tmp_path / "one", length=length)) == 0
    assert_close_runs(tmp_path / "one", tmp_path / "two", 1e-5)


def extract_in_part(results, options) -> None:
    results.put(extract.main(options))


def test_extraction_is_the_same_bit_for_bit_on_any_number_of_processes(data, tmp_path):
    """120 images in batches of 50: three processes have one batch each, two have two and one."""
    assert train.main(arguments(data, tmp_path / "run", length=LENGTHS["classes"])) == 0
    common = ["--dataset", "npz", "--data-root", str(data), "--batch-size", "50", "--device", "cpu"]
    common += ["--checkpoint", str(tmp_path / "run" / "best.safetensors")]
    features = {}
    for size in (1, 2, 3):
        out = tmp_path / f"{size}.safetensors"
        results, processes = start_together(extract_in_part, size, [*common, "--out", str(out)])
        assert [results.get(timeout=600) for _ in processes] == [0] * size
        features[size] = read_tensors(out)[0]
    assert features[1]["features"].shape == (120, 32)
    for size in (2, 3):
        assert torch.equal(features[size]["features"], features[1]["features"])
        assert torch.equal(features[size]["labels"], features[1]["labels"])
