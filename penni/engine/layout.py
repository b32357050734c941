"""From a program's steps to what the native engine runs: which kernels can do a step, and its weights laid out for one.

A convolution is made of *lines* and *rows*. A line holds one number per output position: the input seen through one
kernel tap, or an input channel convolved with one basis kernel. A row is an output channel, a weighted sum of lines.
Nothing here depends on the instruction set: a file packed on one machine runs on another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penni.engine.layout_simple import activation_of, planes, prepare_simple
from penni.engine.program import Array, Program, Shape, Sparse, Step

Choice = Mapping[str, Any]

PANEL_ROWS = 24
PANEL_OUTPUTS = 64
# What the lines of a block may take, in floats: of a first-level cache, or of a second-level one, where fewer blocks
# mean fewer visits to each row. Measured: docs/engine-notes.md.
BLOCK_FLOATS = (10240, 16384, 32768)
# And what planes of mixed channels may take: many are sorted by length better than few.
MIXED_FLOATS = (24576, 6144, 2048)
MOST_LINES = 65535

_COMBINE = {"two_stage": 0, "direct": 0, "dense": 1, "outputs": 2, "depthwise": 3, "mix_first": 5}
# How a sparse kernel sums its rows: each by itself, or four at once: such as share lines, or any of about one length.
ALONE, SHARED, SLICED = "alone", "shared", "sliced"
_COMBINE_SUMS = {SHARED: 4, SLICED: 6}
# Rows at once, and the neighbours among which rows of one length are looked for (csrc/kernels/table.h).
SHARED_ROWS = 4
SLICE_ROWS, SLICE_WINDOW, NO_ROW = 4, 64, 0xFFFFFFFF


@dataclass(frozen=True)
class NativeStep:
    """One step as the native engine takes it; attributes are plain numbers and lists, tensors kernel-ready arrays."""

    op: str
    inputs: tuple[int, ...]
    output: int
    attributes: Mapping[str, Any]
    tensors: Mapping[str, Array]


def prepare(program: Program, step: Step, choice: Choice) -> NativeStep:
    """`step` laid out for the kernel that `choice` names."""
    if step.op in ("conv", "linear"):
        return _prepare_convolution(program, step, choice)
    return NativeStep(*prepare_simple(program, step))


def candidates(program: Program, step: Step, threads: int = 1) -> list[dict[str, Any]]:
    """The kernels that can do `step`, the one that should be fastest first; `cost` is in vector operations, roughly."""
    if step.op not in ("conv", "linear"):
        return [{"kernel": step.op, "cost": 0.0}]
    layer = _Layer.of(program, step)
    found: list[dict[str, Any]] = []
    for kernel in layer.kernels():
        for tile in layer.tiles(kernel):
            for lines in layer.lines(kernel, tile):
                for sums in layer.sums(kernel):
                    found.append({"kernel": kernel, "tile": tile, "lines": lines, "sums": sums})
                    found[-1]["cost"] = layer.cost(kernel, tile, sums)
    found.sort(key=lambda choice: float(choice["cost"]))
    return found


@dataclass(frozen=True)
class _Layer:
    """A convolution (or linear layer) with its sizes at hand."""

    program: Program
    step: Step
    input: Shape
    output: Shape
    kernel: tuple[int, int]
    groups: int
    bases: int  # 0: not decomposed
    nonzero: int

    @classmethod
    def of(cls, program: Program, step: Step) -> _Layer:
        shapes = planes(program.shapes[step.inputs[0]]), planes(program.shapes[step.output])
        if "basis" in step.tensors:
            basis, coefficients = program.tensor(step, "basis"), program.tensor(step, "coefficients")
            assert basis is not None
            assert coefficients is not None
            kernel = (int(basis.shape[1]), int(basis.shape[2]))
            return cls(
                program,
                step,
                *shapes,
                kernel,
                int(step.attributes["groups"]),
                int(basis.shape[0]),
                _count(coefficients),
            )
        weight = program.tensor(step, "weight")
        assert weight is not None
        kernel = (1, 1) if step.op == "linear" else (int(weight.shape[2]), int(weight.shape[3]))
        groups = 1 if step.op == "linear" else int(step.attributes["groups"])
        return cls(program, step, *shapes, kernel, groups, 0, _count(weight))

    @property
    def plane(self) -> int:
        return self.output[1] * self.output[2]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.input[0] and self.input[0] > 1

    @property
    def weights(self) -> int:
        """As many as a dense kernel of this layer has."""
        return self.output[0] * self.input[0] // self.groups * self.taps

    def kernels(self) -> list[str]:
        if self.is_depthwise:
            return ["depthwise"]
        if self.bases and self.taps > 1:
            return ["two_stage", "dense", *(["mix_first"] if self.can_mix_first() else [])]
        found = ["dense"] if self.nonzero * 4 > self.weights else []
        found += ["direct"] if self.nonzero * 4 < self.weights * 3 else []
        if self.groups == 1 and self.plane <= 16:
            found.append("outputs")
        return found

    def can_mix_first(self) -> bool:
        """Whether mixing the channels before convolving is possible, and leaves fewer planes to convolve."""
        if self.groups > 1 or tuple(self.step.attributes["stride"]) != (1, 1) or self.input[0] > MOST_LINES:
            return False
        used, mixed = self.pairs
        return mixed < used

    @cached_property
    def pairs(self) -> tuple[int, int]:
        """The (channel, basis) and the (row, basis) pairs that have a coefficient."""
        row, line, _ = _entries(self, self.program.tensor(self.step, "coefficients"))
        return len(np.unique(line)), len(np.unique(row * self.bases + line % self.bases))

    def tiles(self, kernel: str) -> list[int]:
        widest = -(-self.plane // 16) * 16
        if kernel == "mix_first":
            # Whole planes if they are small: a band mixes again the rows that its neighbours reach into.
            return [min(512, widest)]
        return sorted({min(tile, max(64, widest)) for tile in (64, 128)}) if self.plane > 64 else [64]

    def lines(self, kernel: str, tile: int) -> list[int]:
        """How many lines a block may have, the number that should be best first; fewer if there are no more."""
        if kernel in ("depthwise", "outputs"):
            return [max(16, BLOCK_FLOATS[0] // tile)]
        if kernel == "mix_first":
            held = [max(16, floats // (min(tile, self.plane) + 16)) for floats in MIXED_FLOATS]
            return list(dict.fromkeys(min(number, self.pairs[1]) for number in held))
        made = self.input[0] // self.groups * (self.bases if kernel == "two_stage" else self.taps)
        width = min(tile, -(-self.plane // 16) * 16)  # of one image
        few, middle, many = (max(16, floats // width) for floats in BLOCK_FLOATS)
        # Rows of one vector are short: what each visit costs weighs more than where the lines are.
        ordered = [many, middle, few] if self.plane <= 16 else [middle, few, many]
        found: list[int] = []
        for lines in ordered:
            if min(lines, made) not in found:
                found.append(min(lines, made))
        return found

    def sums(self, kernel: str) -> list[str]:
        """How a sparse kernel can sum its rows; sharing lines pays where many are read by several of four rows."""
        if kernel not in ("two_stage", "direct") or self.groups > 1 or self.output[0] < SHARED_ROWS:
            return [ALONE]
        return [ALONE, SHARED, SLICED]

    def cost(self, kernel: str, tile: int, sums: str = ALONE) -> float:
        """Vector operations of one image, weighed by what was measured (docs/engine-notes.md)."""
        vectors = -(-self.plane // 16)
        copies = self.input[0] * self.taps * 2.0 * vectors if self.taps > 1 else self.input[0] * 1.5 * vectors
        if kernel == "depthwise":
            return self.weights * 2.0 * vectors
        if kernel == "two_stage":
            first = self.input[0] * self.bases * self.taps
            return (first * 1.3 + self._sum(self.input[0] * self.bases, sums)) * vectors
        if kernel == "mix_first":
            bands = -(-self.output[1] // max(1, tile // max(self.input[2], self.output[2])))
            again = (bands - 1) * (self.kernel[0] - 1) / self.output[1]  # rows mixed for two bands
            size = self.input[1] * self.input[2]
            # Small planes are read where they are.
            in_place = size % 16 == 0 and size <= max(32, min(128, 12288 // self.input[0]))
            copied = 0.0 if in_place else self.input[0] * 16.0
            convolved = self.pairs[1] * (self.taps * 1.3 + 6.0) + self.output[0] * 8.0
            return (convolved + self.nonzero * 1.7 * (1 + again) + copied) * vectors
        if kernel == "direct":
            return self._sum(self.input[0] * self.taps, sums) * vectors + copies
        if kernel == "outputs":
            return self.weights * (0.5 + self.plane / 14.0) + copies
        # Below four vectors a dense tile is bound by loading its weights.
        return self.weights * max(1.1 * vectors, 2.0) + copies

    def _sum(self, lines: int, sums: str) -> float:
        """The sparse sums, per vector of positions: loads, arithmetic, and what each group of rows costs by itself."""
        if sums == ALONE:
            return self.nonzero * 1.5
        if sums == SLICED:
            return self.nonzero * 1.4
        density = self.nonzero / max(1, lines * self.output[0])
        groups = self.output[0] / SHARED_ROWS
        loaded = lines * (1 - (1 - density) ** SHARED_ROWS) * groups
        return loaded * 1.0 + self.nonzero * 0.5 + groups * 40


def _count(tensor: Array | Sparse) -> int:
    return int(tensor.values.size) if isinstance(tensor, Sparse) else int(np.count_nonzero(tensor))


def _prepare_convolution(program: Program, step: Step, choice: Choice) -> NativeStep:
    layer = _Layer.of(program, step)
    kernel = str(choice["kernel"])
    sums = str(choice.get("sums", ALONE))
    sparse = {ALONE: _sparse, SHARED: _shared, SLICED: _sliced}[sums]
    bias = program.dense(step, "bias")
    tensors = {
        "bias": np.zeros(layer.output[0], np.float32) if bias is None else bias,
        "basis": np.zeros(0, np.float32),
        "lines": np.zeros(0, np.uint32),
        "blocks": np.zeros(0, np.uint32),
        "row_start": np.zeros(0, np.uint32),
        "index": np.zeros(0, np.uint16),
        "weight": np.zeros(0, np.float32),
    }
    if kernel == "two_stage":
        basis = program.dense(step, "basis")
        assert basis is not None
        tensors["basis"] = basis.reshape(-1)
        tensors |= sparse(layer, *_entries(layer, program.tensor(step, "coefficients")), layer.bases, choice)
    elif kernel == "mix_first":
        basis = program.dense(step, "basis")
        assert basis is not None
        tensors["basis"] = basis.reshape(-1)
        tensors |= _mixed(layer, *_entries(layer, program.tensor(step, "coefficients")), int(choice["lines"]))
    elif kernel == "direct":
        tensors |= sparse(layer, *_entries(layer, _weights(layer)), layer.taps, choice)
    elif kernel == "depthwise":
        tensors["weight"] = _dense_weights(layer).reshape(-1)
    else:
        tensors |= _dense(layer, choice)
    top, bottom, left, right = step.attributes.get("padding", (0, 0, 0, 0))
    activation, slope = activation_of(step)
    attributes = {
        "kernel": list(layer.kernel),
        "stride": list(step.attributes.get("stride", (1, 1))),
        "padding": [top, left, bottom, right],
        "dilation": list(step.attributes.get("dilation", (1, 1))),
        "activation": activation,
        "slope": slope,
        "combine": _COMBINE_SUMS.get(sums, _COMBINE[kernel]),
        "basis_lines": int(kernel == "two_stage"),
        "bases": max(1, layer.bases),
        "tile": int(choice["tile"]),
    }
    return NativeStep("conv", step.inputs, step.output, attributes, tensors)


def _weights(layer: _Layer) -> Array | Sparse:
    """The layer's kernels, (O, I/groups, taps) once flat; written out if they are decomposed."""
    weight = layer.program.tensor(layer.step, "weight")
    if weight is not None:
        return weight
    basis, coefficients = (layer.program.dense(layer.step, role) for role in ("basis", "coefficients"))
    assert basis is not None
    assert coefficients is not None
    return np.asarray(np.einsum("oib,bt->oit", coefficients, basis.reshape(len(basis), -1)), np.float32)


def _dense_weights(layer: _Layer) -> Array:
    weight = _weights(layer)
    return weight.dense() if isinstance(weight, Sparse) else weight


def _entries(layer: _Layer, tensor: Array | Sparse | None) -> tuple[Array, Array, Array]:
    """Row, line and value of every non-zero; a line is numbered channel by channel over the whole input."""
    assert tensor is not None
    sparse = tensor if isinstance(tensor, Sparse) else Sparse.of(tensor)
    rows, per_row = layer.output[0], int(np.prod(sparse.shape, dtype=np.int64)) // layer.output[0]
    row, line = np.divmod(sparse.positions.astype(np.int64), per_row)
    group = row // (rows // layer.groups)
    return row, line + group * per_row, sparse.values


def _sparse(layer: _Layer, row: Array, line: Array, value: Array, each: int, choice: Choice) -> dict[str, Array]:
    """Rows of non-zeros, in blocks of lines; only lines that something reads are made. `each`: lines per channel."""
    lines, table, position, block = _blocked(layer, line, each, choice)
    order = np.lexsort((position, row, block))
    start = np.concatenate([[0], np.cumsum(table[:, 3] - table[:, 2] + 1)])
    counts = np.zeros(int(start[-1]), np.int64)
    # Entry r + 1 of a block counts row r, so that the running sum gives where each row begins.
    np.add.at(counts, start[block] + row - table[block, 2] + 1, 1)
    return {
        "lines": lines.astype(np.uint32),
        "blocks": table.astype(np.uint32).reshape(-1),
        "row_start": np.cumsum(counts).astype(np.uint32),
        "index": (position - table[block, 0])[order].astype(np.uint16),
        "weight": np.ascontiguousarray(value[order], np.float32),
    }


def _shared(layer: _Layer, row: Array, line: Array, value: Array, each: int, choice: Choice) -> dict[str, Array]:
    """The same for four rows at once: the entries of four rows sorted by which of the four read the line."""
    lines, table, position, block = _blocked(layer, line, each, choice)
    groups = -(-layer.output[0] // SHARED_ROWS)
    group, member = block * groups + row // SHARED_ROWS, row % SHARED_ROWS
    # One read for every line that a group needs, and the set of its rows that do.
    reads, read = np.unique(group * len(lines) + position, return_inverse=True)
    readers = np.zeros(len(reads), np.int64)
    np.bitwise_or.at(readers, read, 1 << member)
    of_group, at = np.divmod(reads, max(1, len(lines)))
    order = np.lexsort((at, readers, of_group))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    words = np.zeros((len(table) * groups, 2 + (1 << SHARED_ROWS) - 1), np.int64)
    np.add.at(words, (of_group, 1 + readers), 1)
    weights = np.bincount(group, minlength=len(words))
    words[:, 0] = np.concatenate([[0], np.cumsum(words[:, 2:].sum(axis=1))[:-1]])
    words[:, 1] = np.concatenate([[0], np.cumsum(weights)[:-1]])
    return {
        "lines": lines.astype(np.uint32),
        "blocks": table.astype(np.uint32).reshape(-1),
        "row_start": words.astype(np.uint32).reshape(-1),
        "index": (at - table[of_group // groups, 0])[order].astype(np.uint16),
        "weight": np.ascontiguousarray(value[np.lexsort((member, place[read]))], np.float32),
    }


def _sliced(layer: _Layer, row: Array, line: Array, value: Array, each: int, choice: Choice) -> dict[str, Array]:
    """The same for four rows at once that need not share anything: rows of about one length, filled up with zeros."""
    lines, table, position, block = _blocked(layer, line, each, choice)
    rows = layer.output[0]
    slices = -(-rows // SLICE_ROWS)
    lengths = np.zeros((len(table), rows), np.int64)
    np.add.at(lengths, (block, row), 1)
    # Longest first within each window of neighbours; what is missing in the last slice is no row.
    windows = np.broadcast_to(np.arange(rows) // SLICE_WINDOW, lengths.shape)
    order = np.lexsort((-lengths, windows), axis=1)
    members = np.full((len(table), slices * SLICE_ROWS), NO_ROW, np.int64)
    members[:, :rows] = order
    steps = np.take_along_axis(lengths, order, axis=1)[:, ::SLICE_ROWS]
    start = np.concatenate([[0], np.cumsum(steps.reshape(-1) * SLICE_ROWS)])
    words = np.empty((len(table), slices, 2 + SLICE_ROWS), np.int64)
    words[:, :, 0] = start[:-1].reshape(steps.shape)
    words[:, :, 1] = steps
    words[:, :, 2:] = members.reshape(len(table), slices, SLICE_ROWS)
    place = np.empty_like(order)  # of every row among the sorted ones
    np.put_along_axis(place, order, np.broadcast_to(np.arange(rows), order.shape), axis=1)
    sorted_entries = np.lexsort((position, row, block))
    of_block, of_row = block[sorted_entries], row[sorted_entries]
    # The how-manieth entry of its row and block each one is.
    first = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])[:-1].reshape(lengths.shape)
    rank = np.arange(len(of_row)) - first[of_block, of_row]
    among = place[of_block, of_row]
    at = words[of_block, among // SLICE_ROWS, 0] + rank * SLICE_ROWS + among % SLICE_ROWS
    # Zeros that fill up a row read a line that it reads anyway.
    index = np.zeros(int(start[-1]), np.int64)
    weight = np.zeros(int(start[-1]), np.float32)
    index[at] = position[sorted_entries] - table[of_block, 0]
    weight[at] = value[sorted_entries]
    filler = np.ones(len(index), bool)
    filler[at] = False
    last = np.zeros(lengths.shape, np.int64)
    last[of_block, of_row] = position[sorted_entries] - table[of_block, 0]
    places = np.flatnonzero(filler)
    owner_slice = np.searchsorted(start[1:], places, side="right")
    owner = members.reshape(-1, SLICE_ROWS)[owner_slice, places % SLICE_ROWS]
    index[places] = last[owner_slice // slices, np.minimum(owner, rows - 1)]
    return {
        "lines": lines.astype(np.uint32),
        "blocks": table.astype(np.uint32).reshape(-1),
        "row_start": words.astype(np.uint32).reshape(-1),
        "index": index.astype(np.uint16),
        "weight": weight,
    }


def _blocked(layer: _Layer, line: Array, each: int, choice: Choice) -> tuple[Array, Array, Array, Array]:
    """The lines in use, the table of blocks, and of every entry its place among the lines and its block."""
    lines = np.unique(line)
    rows, channels = layer.output[0] // layer.groups, layer.input[0] // layer.groups
    blocks: list[tuple[int, int, int, int]] = []
    for group in range(layer.groups):
        begin, end = np.searchsorted(lines, [group * channels * each, (group + 1) * channels * each])
        # A block ends where a channel does, so that no channel is prepared twice.
        ends = _block_ends(lines[begin:end] // each, min(int(choice["lines"]), MOST_LINES))
        starts = [0, *ends[:-1]]
        for first, last in zip(starts, ends, strict=True):
            blocks.append((int(begin) + first, int(begin) + last, group * rows, (group + 1) * rows))
    table = np.asarray(blocks, np.int64)
    position = np.searchsorted(lines, line)
    # A line belongs to the last block that begins at or before it; empty blocks begin where the next one does.
    return lines, table, position, np.searchsorted(table[:, 0], position, side="right") - 1


def _mixed(layer: _Layer, row: Array, line: Array, value: Array, most: int) -> dict[str, Array]:
    """Planes of mixed channels, one per row and basis in use, in blocks of whole rows with up to `most` planes."""
    channel, basis = np.divmod(line, layer.bases)
    used, plane, length = np.unique(row * layer.bases + basis, return_inverse=True, return_counts=True)
    plane = plane.reshape(-1)
    ends = _block_ends(used // layer.bases, most)
    block = np.searchsorted(ends, np.arange(len(used)), side="right")
    # Planes of one length follow each other, so that the processor foresees where their sums end.
    order = np.lexsort((length, block))
    place = np.argsort(order)
    entries = np.lexsort((channel, place[plane]))
    last = [*(used[np.asarray(ends[:-1], np.int64)] // layer.bases).tolist(), layer.output[0]]
    starts = zip([0, *ends[:-1]], ends, [0, *last[:-1]], last, strict=True)
    return {
        "lines": used[order].astype(np.uint32),
        "blocks": np.asarray(list(starts), np.uint32).reshape(-1),
        "row_start": np.concatenate([[0], np.cumsum(length[order])]).astype(np.uint32),
        "index": channel[entries].astype(np.uint16),
        "weight": np.ascontiguousarray(value[entries], np.float32),
    }


def _block_ends(channels: Array, most: int) -> list[int]:
    """Where to cut lines, given the channel of each, so that a piece has at most `most` (or one channel)."""
    if not len(channels):
        return [0]
    cuts = np.append(np.flatnonzero(np.diff(channels)) + 1, len(channels))
    ends: list[int] = []
    begin = 0
    # Equal pieces rather than full ones and a rest.
    pieces = -(-len(channels) // most)
    target = -(-len(channels) // pieces)
    for previous, cut in zip([0, *cuts[:-1].tolist()], cuts.tolist(), strict=True):
        if cut - begin > max(target, 1) and previous > begin:
            ends.append(previous)
            begin = previous
    return [*ends, len(channels)]


def _dense(layer: _Layer, choice: Choice) -> dict[str, Array]:
    """Dense rows, packed so that a kernel reads its weights one after another."""
    rows, per_row = layer.output[0] // layer.groups, layer.input[0] // layer.groups * layer.taps
    weight = _dense_weights(layer).reshape(layer.groups, rows, per_row)
    pack: Callable[[Array], Array] = _panels
    most = min(int(choice["lines"]), per_row)
    if choice["kernel"] == "outputs":
        pack, most = _padded_panels, per_row
    blocks: list[tuple[int, int, int, int]] = []
    parts: list[Array] = []
    for group in range(layer.groups):
        pieces = -(-per_row // most)
        for piece in range(pieces):
            first, last = per_row * piece // pieces, per_row * (piece + 1) // pieces
            blocks.append((group * per_row + first, group * per_row + last, group * rows, (group + 1) * rows))
            parts.append(pack(weight[group, :, first:last]))
    return {
        "lines": np.arange(layer.input[0] * layer.taps, dtype=np.uint32),
        "blocks": np.asarray(blocks, np.uint32).reshape(-1),
        "weight": np.concatenate(parts).astype(np.float32, copy=False),
    }


def _panels(weight: Array) -> Array:
    return np.concatenate([weight[row : row + PANEL_ROWS].T.reshape(-1) for row in range(0, len(weight), PANEL_ROWS)])


def _padded_panels(weight: Array) -> Array:
    padded = np.zeros((-(-len(weight) // PANEL_OUTPUTS) * PANEL_OUTPUTS, weight.shape[1]), np.float32)
    padded[: len(weight)] = weight
    return padded.reshape(-1, PANEL_OUTPUTS, weight.shape[1]).transpose(0, 2, 1).reshape(-1)


def default_plan(program: Program, threads: int = 1) -> list[dict[str, Any]]:
    """The first candidate of every step."""
    return [candidates(program, step, threads)[0] for step in program.steps]


def prepare_all(program: Program, plan: Sequence[Choice]) -> list[NativeStep]:
    """Every step of the program, laid out for its choice."""
    return [prepare(program, step, choice) for step, choice in zip(program.steps, plan, strict=True)]
