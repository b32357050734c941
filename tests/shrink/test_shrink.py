"""What a user of `penni.shrink` relies on: the input is left alone, the result is an ordinary module."""

from __future__ import annotations

import copy
import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from networks import CASES, Chain, PaddedShortcut, Shortcut, Sliced
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import penni
from penni.shrinking import rewrite as rewriting
from penni.shrinking.exercise import deaden


def images(side: int = 8, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(7))


def small_pruned(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return deaden(penni.decompose(penni.build("resnet20"), 4).eval(), seed, filters=0.5, inputs=0.3, bases=0.4)


def gap(first: nn.Module, second: nn.Module, batch: Tensor) -> float:
    with torch.no_grad():
        expected = first(batch)
        return float((expected - second(batch)).abs().max() / expected.abs().max())


def test_the_given_model_keeps_its_weights_and_the_mode_of_each_module() -> None:
    model = small_pruned().train()
    model.layer1.eval()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = penni.shrink(model, images(32))
    assert result.report.removed > 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert not model.layer1.training
    assert result.model.training
    assert not result.model.layer1.training


def test_basis_kernels_that_no_coefficient_uses_go() -> None:
    model = penni.decompose(penni.build("small"), 5).eval()
    with torch.no_grad():
        model.conv1.coefficients[:, :, [0, 3]] = 0
    result = penni.shrink(model, images(8, 1))
    assert result.model.conv1.bases == 3
    assert result.model.conv1.basis.shape == (3, 3, 3)
    assert gap(model, result.model, images(8, 1)) < 1e-5


def test_a_shrunk_checkpoint_loads_into_the_same_answers(tmp_path: Path) -> None:
    result = penni.shrink(small_pruned(), images(32))
    penni.save(result.model, tmp_path / "shrunk")
    loaded = penni.load(tmp_path / "shrunk")
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in result.model.parameters())
    assert torch.equal(loaded(images(32)), result.model.eval()(images(32)))


def test_a_shrunk_model_of_ones_own_loads_into_its_constructor(tmp_path: Path) -> None:
    model = deaden(Shortcut().eval(), 3)
    result = penni.shrink(model, images())
    assert result.report.removed > 0
    penni.save(result.model, tmp_path / "own")
    loaded = penni.load(tmp_path / "own", model=Shortcut())
    assert torch.equal(loaded(images()), result.model(images()))


def test_the_result_trains_copies_exports_and_moves() -> None:
    model = small_pruned()
    result = penni.shrink(model, images(32)).model
    twin = copy.deepcopy(result)
    assert torch.equal(twin(images(32)), result(images(32)))
    program = torch.export.export(result, (images(32),))
    assert torch.allclose(program.module()(images(32)), result(images(32)), atol=1e-5)
    assert all(p.device.type == "meta" for p in twin.to("meta").parameters())
    result.train()
    before = result.conv1.coefficients.clone()
    optimizer = torch.optim.SGD(result.parameters(), lr=0.1)
    F.cross_entropy(result(images(32)), torch.tensor([1, 2])).backward()
    optimizer.step()
    assert not torch.equal(before, result.conv1.coefficients)


def test_masks_of_torch_prune_made_permanent_shrink() -> None:
    model = Chain().eval()
    torch_prune.ln_structured(model.b, "weight", amount=0.5, n=2, dim=0)
    torch_prune.remove(model.b, "weight")
    torch_prune.ln_structured(model.head, "weight", amount=0.25, n=2, dim=1)
    torch_prune.remove(model.head, "weight")
    nn.init.zeros_(model.bn.bias)
    result = penni.shrink(model, images())
    assert result.model.b.out_channels <= 6
    assert result.model.bn.num_features == result.model.b.out_channels
    assert result.model.head.in_features == result.model.b.out_channels
    assert gap(model, result.model, images()) < 1e-5


def test_a_dead_filter_with_a_shift_stays_and_the_report_says_so() -> None:
    model = Chain().eval()
    with torch.no_grad():
        model.b.weight[4] = 0
        model.bn.bias[4] = 1.0
        model.b.weight[5] = 0
        model.bn.bias[5] = 0.0
    report = penni.shrink(model, images()).report
    assert (report.dead, report.removed) == (2, 1)
    (kept,) = report.kept
    assert (kept.layer, kept.channels) == ("b", (4,))
    assert "bn" in kept.reason


def test_a_negative_shift_before_a_relu_is_as_good_as_none() -> None:
    model = Chain().eval()
    with torch.no_grad():
        model.a.weight[2] = 0
        model.a.bias[2] = 0
        model.an.bias[2] = -0.5
    result = penni.shrink(model, images())
    assert result.model.a.out_channels == 9
    assert gap(model, result.model, images()) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_layers_that_die_altogether_leave_the_answer_alone(name: str) -> None:
    model = deaden(CASES[name].make().eval(), 0, filters=1.0, inputs=1.0)
    result = penni.shrink(model, images())
    with torch.no_grad():
        assert torch.allclose(model(images()), result.model(images()), atol=1e-6)
    assert all(row.after.width >= 1 for row in result.report.rows)


def test_pieces_of_a_chunk_lose_the_same_number() -> None:
    model = Sliced().eval()
    with torch.no_grad():
        for channel in (0, 1, 4, 7):
            model.a.weight[channel] = 0
            model.a.bias[channel] = 0
    result = penni.shrink(model, images())
    assert result.model.a.out_channels == 10
    assert gap(model, result.model, images()) < 1e-5
    assert any("equal size" in item.reason for item in result.report.kept)


class Written(nn.Module):
    """Its sizes are numbers in the code, or an attribute."""

    def __init__(self, attribute: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(16, 2, 1)
        self.parts = 8 if attribute else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = torch.cat([x, self.b(x)], 1)
        if self.parts is not None:
            left, right = torch.split(x, self.parts, 1)
        else:
            left, right = x[:, :8], x[:, 8:]
        return self.c(torch.cat([right, left], 1))


@pytest.mark.parametrize(("attribute", "width"), [(True, 6), (False, 8)])
def test_sizes_in_attributes_follow_and_sizes_in_code_stay(attribute: bool, width: int) -> None:
    model = Written(attribute).eval()
    with torch.no_grad():
        for layer in (model.a, model.b):
            layer.weight[[1, 5]] = 0
            layer.bias[[1, 5]] = 0
    result = penni.shrink(model, images())
    assert (result.model.a.out_channels, result.model.b.out_channels) == (width, width)
    assert gap(model, result.model, images()) < 1e-5
    if not attribute:
        assert any("written into its code" in item.reason for item in result.report.kept)


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft2(x).real


class WithFourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.middle, self.b = nn.Conv2d(3, 8, 3), Fourier(), nn.Conv2d(8, 6, 3)
        self.c = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(self.middle(self.a(x)))))


def test_constants_that_add_up_to_what_an_activation_makes_zero() -> None:
    torch.manual_seed(0)
    model = CASES["shortcut"].make().eval()
    with torch.no_grad():
        for norm in (model.dn, model.shortn):
            norm.running_mean.zero_()
        for channel, (first, second) in enumerate([(0.5, -0.75), (0.5, 0.25)]):  # the join is rectified
            model.d.weight[channel], model.d.bias[channel] = 0, 0
            model.short.weight[channel], model.short.bias[channel] = 0, 0
            model.dn.bias[channel], model.shortn.bias[channel] = first, second
    result = penni.shrink(model, images())
    assert result.model.d.out_channels == result.model.short.out_channels == 11
    assert gap(model, result.model, images()) < 1e-5


class WithRegions(nn.Module):
    """Computes a part without gradients and without autocast, as linear attention does to keep its precision."""

    def __init__(self, autocast: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1)
        self.autocast = autocast

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        with torch.autocast("cpu", enabled=self.autocast, dtype=torch.bfloat16):
            with torch.no_grad():
                gate = x.relu() * 2
            x = self.b(x) + gate[:, :, 1:-1, 1:-1]
        return self.c(x.float())


def test_parts_under_no_grad_and_under_no_autocast_shrink_like_the_rest() -> None:
    model = deaden(WithRegions().eval(), 4, filters=0.6, survivors=2)
    result = penni.shrink(model, images())
    assert result.model.a.out_channels < 8
    assert result.model.b.out_channels < 8
    assert gap(model, result.model, images()) < 1e-5


def test_a_part_under_autocast_is_named() -> None:
    with pytest.raises(penni.UnknownOperatorError, match=r"wrap_with_autocast.*own forward"):
        penni.shrink(WithRegions(autocast=True).eval(), images())


@pytest.mark.parametrize(
    "spread",
    [
        lambda x: x.var((2, 3), unbiased=False, keepdim=True),
        lambda x: x.var((2, 3))[:, :, None, None],
        lambda x: x.std((2, 3), correction=0, keepdim=True),
        lambda x: (
            x.unflatten(1, (4, -1)).var((2, 3, 4), unbiased=False, keepdim=True).repeat(1, 1, 2, 1, 1).flatten(1, 2)
        ),
    ],
    ids=["per channel", "without the axes", "deviation", "over groups"],
)
def test_variances_written_out(spread: Callable[[Tensor], Tensor]) -> None:
    class Standardised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.b(x / (spread(x).reshape(2, 8, 1, 1) + 1).sqrt())

    model = deaden(Standardised().eval(), 4, filters=0.6, survivors=2)
    result = penni.shrink(model, images())
    assert gap(model, result.model, images()) < 1e-5


def test_an_unknown_operator_is_an_error_that_names_it_and_exclude_helps() -> None:
    model = deaden(WithFourier().eval(), 4, filters=0.6)
    with pytest.raises(penni.UnknownOperatorError, match=r"fft.*'middle'.*exclude=\['middle'\]"):
        penni.shrink(model, images())
    result = penni.shrink(model, images(), exclude=["mid*"])
    assert result.report.excluded == ("middle",)
    assert result.model.a.out_channels == 8
    assert result.model.b.out_channels < 6
    assert gap(model, result.model, images()) < 1e-5


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (
            lambda x: torch.fft.fft2(x).real,
            r"fft.* in the model's own forward; move that part into a module of its own",
        ),
        (lambda x: x if x.sum() > 0 else -x, r"data-dependent.*; move what it fails on out of the model's own forward"),
    ],
)
def test_what_stands_in_the_models_own_forward_cannot_be_excluded(
    forward: Callable[[Tensor], Tensor], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self.a(x))

    with pytest.raises(penni.PenniError, match=message):
        penni.shrink(Own().eval(), images())
    assert capsys.readouterr() == ("", "")


def test_an_exclusion_that_names_nothing_is_an_error() -> None:
    with pytest.raises(penni.PenniError, match="no module is named 'heads'"):
        penni.shrink(Chain(), images(), exclude=["heads"])


class Branching(nn.Module):
    """Its way depends on the numbers: no graph can be captured of it."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x) if float(x.sum()) > 0 else self.only(-x)


class WithBranching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.middle, self.b, self.c = nn.Conv2d(3, 8, 1), Branching(), nn.Conv2d(8, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.middle(self.a(x))))


def test_what_cannot_be_captured_is_kept_and_listed() -> None:
    model = WithBranching().eval()
    with torch.no_grad():
        model.b.weight[2:4] = 0
        model.b.bias[2:4] = 0
    result = penni.shrink(model, images())
    assert result.report.untraceable == ("middle",)
    assert "not traceable" in result.report.text()
    assert result.model.b.out_channels == 4
    assert gap(model, result.model, images()) < 1e-5


def test_an_input_that_the_model_refuses_is_one_sentence() -> None:
    with pytest.raises(penni.PenniError, match="does not run on the example input"):
        penni.shrink(Chain(), torch.randn(1, 4, 8, 8))


def test_a_difference_is_an_error_that_names_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rewriting.rewrite

    def spoil(model: nn.Module, *arguments: object) -> None:
        real(model, *arguments)
        with torch.no_grad():
            model.cn.weight += 0.5

    monkeypatch.setattr("penni.shrinking.phase.rewrite", spoil)
    with pytest.raises(penni.DiffersError, match="first difference is at cn"):
        penni.shrink(deaden(Shortcut().eval(), 2), images())


class Auxiliary(nn.Module):
    """A second head that only runs in training."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3)
        self.head, self.extra = nn.Conv2d(6, 2, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        result = self.head(self.b(x)).mean((2, 3))
        return result + self.extra(x).mean((2, 3)) if self.training else result


def test_heads_of_training_can_still_read_their_input() -> None:
    model = deaden(Auxiliary().eval(), 3, filters=0.7)
    result = penni.shrink(model, images())
    assert result.report.unreached == ("extra",)
    assert result.model.b.out_channels < 6
    result.model.train()(images()).sum().backward()
    assert any("in training" in item.reason for item in result.report.kept)


class Shared(nn.Module):
    """One layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.twice, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.twice(F.relu(self.twice(F.relu(self.a(x))))))


def test_a_layer_in_two_places_is_narrowed_for_both() -> None:
    model = Shared().eval()
    with torch.no_grad():
        for layer in (model.a, model.twice):
            layer.weight[[2, 3]] = 0
            layer.bias[[2, 3]] = 0
    result = penni.shrink(model, images())
    assert result.model.twice.weight.shape == (4, 4, 3, 3)
    assert gap(model, result.model, images()) < 1e-5


def test_tables_are_laid_out_as_the_appendix() -> None:
    model = penni.decompose(PaddedShortcut(), {"a": 3}).eval()
    with torch.no_grad():
        model.a.coefficients[[1, 4]] = 0
        model.a.bias[[1, 4]] = 0
        model.an.weight[[1, 4]] = 0
        model.an.bias[[1, 4]] = 0
    report = penni.shrink(model, images()).report
    lines = list(csv.DictReader(io.StringIO(report.table("csv"))))
    layer = next(line for line in lines if line["name"] == "a")
    assert (layer["size"], layer["width before"], layer["basis before"]) == ("3", "6", "3")
    assert (layer["non-zero/total before"], layer["sparsity % before"]) == ("96/144", "33.33")
    assert (layer["width after"], layer["non-zero/total after"], layer["sparsity % after"]) == ("4", "96/96", "0.00")
    assert lines[-1]["name"] == "total"
    assert "head" not in report.table("markdown", convolutions_only=True)
    assert report.table("latex").count(r"\\ \hline") == len(lines)


def test_shrinking_twice_finds_nothing_more() -> None:
    once = penni.shrink(small_pruned(), images(32))
    assert once.report.removed > 0
    assert penni.shrink(once.model, images(32)).report.removed == 0
