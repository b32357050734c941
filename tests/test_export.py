"""Exported files answer as the checkpoint, say where they come from, and take any batch."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import penni
from penni.cli import application
from penni.exporting import export, in_form, two_stage
from penni.exporting.check import openvino_runner


def _randomised(model: nn.Module) -> nn.Module:
    """Normalisation statistics that are not the neutral ones, so that folding them wrongly shows."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return _randomised(penni.prune(penni.decompose(penni.build("small"), 4), density=0.4))


@pytest.fixture(scope="module")
def checkpoint(network: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    notes = {"data": "digits", "normalisation": {"mean": [0.3], "std": [0.4]}, "input": [1, 8, 8]}
    return penni.save(network, tmp_path_factory.mktemp("run") / "checkpoint", notes=notes)


def _invoke(*arguments: str) -> str:
    from typer.testing import CliRunner

    result = CliRunner().invoke(application(), list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups", "mode"),
    [
        ((1, 1), (1, 1), (1, 1), 1, "zeros"),
        ((2, 1), (2, 0), (1, 2), 2, "zeros"),
        ((1, 1), "same", (2, 2), 1, "zeros"),
        ((2, 2), (1, 2), (1, 1), 3, "reflect"),
        ((1, 1), "same", (1, 1), 1, "circular"),
        ((1, 1), (1, 1), (1, 1), 1, "replicate"),
    ],
)
def test_two_stages_equal_the_decomposed_layer(
    stride: tuple[int, int], padding: tuple[int, int] | str, dilation: tuple[int, int], groups: int, mode: str
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 12, 3, stride, padding, dilation, groups, padding_mode=mode)
    model = penni.prune(penni.decompose(nn.Sequential(layer), 5), density=0.3)
    images = torch.randn(2, 6, 11, 9)
    with torch.no_grad():
        torch.testing.assert_close(two_stage(model)(images), model(images), rtol=1e-5, atol=1e-5)


def test_unused_basis_kernels_are_not_written_out() -> None:
    model = penni.decompose(nn.Sequential(nn.Conv2d(3, 4, 3, bias=False)), 5)
    with torch.no_grad():
        model[0].coefficients[..., 2:] = 0  # type: ignore[index, union-attr, operator]
    shapes = {tuple(parameter.shape) for parameter in two_stage(model).parameters()}
    assert shapes == {(6, 1, 3, 3), (4, 6, 1, 1)}


def test_pointwise_layers_become_plain_convolutions() -> None:
    model = penni.decompose(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1)), 3, pointwise=True)
    written = two_stage(model)
    images = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(written(images), model(images), rtol=1e-5, atol=1e-5)
    assert type(written[1]) is nn.Conv2d  # type: ignore[index]


@pytest.mark.parametrize("form", ["dense", "two-stage"])
def test_onnx_from_the_command_line(checkpoint: Path, network: nn.Module, tmp_path: Path, form: str) -> None:
    file = tmp_path / "network.onnx"
    answer = json.loads(_invoke("export", str(checkpoint), "--form", form, "--out", str(file), "--json"))
    assert answer["checked_in"] == "onnxruntime"
    assert answer["largest_difference"] < 1e-4
    graph = onnx.load(file)
    onnx.checker.check_model(graph)
    about = {entry.key: entry.value for entry in graph.metadata_props}
    assert about["model"] == "small"
    assert about["form"] == form
    assert json.loads(about["normalisation"]) == {"mean": [0.3], "std": [0.4]}
    assert len(about["checkpoint_sha256"]) == 64
    assert graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    grouped = [
        node
        for node in graph.graph.node
        for attribute in node.attribute
        if node.op_type == "Conv" and attribute.name == "group" and attribute.i > 1
    ]
    assert bool(grouped) == (form == "two-stage")
    images = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        expected = network(images)
    torch.testing.assert_close(openvino_runner(file)(images)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["dense", "two-stage"])
def test_archive_loads_without_the_models_code(network: nn.Module, tmp_path: Path, form: str) -> None:
    file = tmp_path / "network.pt2"
    export(network, file, torch.zeros(1, 1, 8, 8), format="pt2", form=form, provenance={"note": "from a test"})
    extra = {"penni.json": ""}
    program = torch.export.load(file, extra_files=extra).module()
    assert json.loads(extra["penni.json"])["note"] == "from a test"
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(program(images), network(images), rtol=1e-4, atol=1e-4)


def test_the_files_carry_no_paths_of_this_machine(checkpoint: Path, tmp_path: Path) -> None:
    for format in ("onnx", "pt2"):
        file = tmp_path / f"network.{format}"
        _invoke("export", str(checkpoint), "--format", format, "--out", str(file))
        content = file.read_bytes()
        assert str(Path(penni.__file__).parent).encode() not in content
        assert b"site-packages" not in content


def test_a_run_folder_stands_for_its_last_network(checkpoint: Path) -> None:
    message = _invoke("export", str(checkpoint.parent))
    file = checkpoint.parent / "checkpoint-dense.onnx"
    assert file.is_file()
    assert str(file) in message


def test_a_file_that_answers_differently_is_not_written(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(file: Path) -> object:
        return lambda images: [network(images).detach() + 0.01]

    monkeypatch.setattr("penni.exporting.archive.onnxruntime_runner", spoiled)
    with pytest.raises(penni.DiffersError, match="not written"):
        export(network, tmp_path / "network.onnx", torch.zeros(1, 1, 8, 8))
    assert list(tmp_path.iterdir()) == []


class _DependsOnBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.convolution(images)
        if len(images) == 2:
            return outputs
        return outputs * 2


def test_a_fixed_batch_where_the_model_needs_one(tmp_path: Path) -> None:
    model = _DependsOnBatch().eval()
    with pytest.raises(penni.PenniError, match="--batch"):
        export(model, tmp_path / "network.onnx", torch.zeros(1, 1, 8, 8))
    agreement = export(model, tmp_path / "network.onnx", torch.zeros(1, 1, 8, 8), batch=1)
    assert agreement.batches == (1,)


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_a_disk_that_is_full_leaves_nothing_and_is_said_as_such(
    format: str, network: nn.Module, tmp_path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises((penni.PenniError, OSError), match="too large") as caught:
            export(network, tmp_path / f"network.{format}", torch.zeros(1, 1, 8, 8), format=format)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "trace" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class _Values(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.linalg.svdvals(images)


class _Branching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images if images.sum() > 0 else -images


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), _Values()), r"operator aten\.\S*svd\S*, which is used in '1' \(a _Values\)"),
        (_Values(), r"operator aten\.\S*svd\S*, which is used in the network's own forward: write that part"),
        (_Branching(), r"cannot trace this model: Could not guard on data-dependent"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_no_more(
    model: nn.Module, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(penni.PenniError, match=message):
        export(model.eval(), tmp_path / "network.onnx", torch.zeros(1, 1, 8, 8))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "thin"}, "no form 'thin'"),
        ({"format": "tflite"}, "no format 'tflite'"),
        ({"format": "pt2", "opset": 18}, "opset"),
        ({"opset": 5}, "cannot be written with opset 5: leave it out, or use 18"),
        ({"batch": 0}, "a batch of 0 images"),
    ],
)
def test_mistakes_are_sentences(network: nn.Module, tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(penni.PenniError, match=message):
        export(network, tmp_path / "network.onnx", torch.zeros(1, 1, 8, 8), **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_file_s_place_is_said(network: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(penni.PenniError, match=r"is a folder: name the file to write, such as '.*network\.onnx'"):
        export(network, tmp_path, torch.zeros(1, 1, 8, 8))


def test_a_runtime_that_refuses_the_file_is_one_sentence(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : opset 99 is under development\nand more lines")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    with pytest.raises(penni.PenniError, match=r"does not run what was exported.*under development; a newer"):
        export(network, tmp_path / "network.onnx", torch.zeros(1, 1, 8, 8))
    assert list(tmp_path.iterdir()) == []


def test_two_stages_of_a_plain_network_are_refused(tmp_path: Path) -> None:
    with pytest.raises(penni.PenniError, match="decomposed layers"):
        export(penni.build("small"), tmp_path / "network.onnx", torch.zeros(1, 1, 8, 8), form="two-stage")


def test_dense_and_two_stage_forms_agree_on_a_zoo_network() -> None:
    torch.manual_seed(0)
    model = penni.decompose(penni.build("torchvision:resnet18"), 5)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        dense, narrow = (in_form(model, form)(images).numpy() for form in ("dense", "two-stage"))
    np.testing.assert_allclose(narrow, dense, rtol=1e-4, atol=1e-4)
