"""Boxes, pixels, cells."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program

BOXES = floats([0, 0, 2, 2], [0, 0, 2, 1.8], [5, 5, 6, 6], [0.1, 0, 2, 2])
APART = floats([0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5], [6, 6, 7, 7])


def _iou(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.maximum(a[:2], b[:2]), torch.minimum(a[2:], b[2:])
    size = (high - low).clamp(min=0)
    both = size[0] * size[1]
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    return both / (area_a + area_b - both)


@program(
    (BOXES, floats(0.9, 0.8, 0.7, 0.6)),
    (APART, floats(0.1, 0.2, 0.3, 0.4)),
    (BOXES[[0, 0, 0, 0]], floats(0.1, 0.2, 0.2, 0.1)),
)
def nms_mask(boxes: Tensor, scores: Tensor, threshold: float = 0.5) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    keep = torch.ones(4, dtype=torch.bool)
    for i in range(4):
        if not keep[order[i]]:
            continue
        for j in range(i + 1, 4):
            if _iou(boxes[order[i]], boxes[order[j]]) > threshold:
                keep[order[j]] = False
    return keep


@program(
    (BOXES, floats(0.9, 0.8, 0.7, 0.6)),
    (APART, floats(0.1, 0.2, 0.3, 0.4)),
    (BOXES[[0, 0, 0, 0]], floats(0.1, 0.2, 0.2, 0.1)),
)
def nms_shrinking(boxes: Tensor, scores: Tensor, threshold: float = 0.5) -> Tensor:
    order = scores.argsort(descending=True, stable=True)
    keep = []
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        rest = order[1:]
        overlaps = torch.stack([_iou(boxes[i], boxes[j]) for j in rest])
        order = rest[overlaps <= threshold]
    return torch.stack(keep)


@program(
    (BOXES, floats(0.9, 0.8, 0.7, 0.6)),
    (APART, floats(0.1, 0.2, 0.3, 0.4)),
    (BOXES[[0, 0, 0, 0]], floats(0.1, 0.2, 0.2, 0.1)),
)
def nms_while(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    left = torch.ones(4, dtype=torch.bool)
    kept = torch.zeros(4, dtype=torch.bool)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    rounds = torch.tensor(0)
    while left.any():
        best = torch.where(left, scores, float("-inf")).argmax()
        kept[best] = True
        low = torch.maximum(boxes[:, :2], boxes[best, :2])
        high = torch.minimum(boxes[:, 2:], boxes[best, 2:])
        both = (high - low).clamp(min=0).prod(dim=1)
        left = left & (both / (area + area[best] - both) <= 0.5)
        left[best] = False
        rounds += 1
    return kept, rounds


@program((draw(5), number(0.0)), (draw(5).abs(), number(0.1)), (-torch.ones(5), number(0.0)))
def filter_anchors(scores: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    keep = scores > threshold
    if keep.sum() == 0:
        keep = scores == scores.max()
    index = keep.nonzero().squeeze(1)
    return index, scores[keep]


@program((draw(5), number(0.0)), (draw(5).abs(), number(0.1)), (-torch.ones(5), number(0.0)))
def filter_anchors_one_by_one(scores: Tensor, threshold: Tensor) -> list[int]:
    return [i for i, score in enumerate(scores) if score > threshold]


@program(
    floats([0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]),
    floats([0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]),
    floats([1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0]),
)
def game_of_life_until_stable(board: Tensor) -> tuple[Tensor, int]:
    kernel = torch.ones(1, 1, 3, 3)
    kernel[0, 0, 1, 1] = 0
    generation = 0
    while generation < 8:
        neighbours = torch.conv2d(board[None, None], kernel, padding=1)[0, 0]
        new = ((neighbours == 3) | ((board == 1) & (neighbours == 2))).float()
        if torch.equal(new, board):
            break
        board = new
        generation += 1
    return board, generation


@program(
    floats([1, 1, 0], [0, 1, 0], [0, 0, 1]),
    floats([0, 0, 0], [0, 0, 0], [0, 0, 0]),
    floats([1, 0, 1], [1, 1, 1], [1, 0, 1]),
)
def flood_fill(image: Tensor) -> Tensor:
    filled = torch.zeros(3, 3, dtype=torch.bool)
    filled[0, 0] = image[0, 0] > 0
    while True:
        grown = torch.nn.functional.max_pool2d(filled[None].float(), 3, 1, 1)[0] > 0
        grown = grown & (image > 0)
        if (grown == filled).all():
            return filled
        filled = grown


@program(draw(4, 4), torch.ones(4, 4), draw(4, 4, seed=3) * 50 + 100)
def otsu_threshold(image: Tensor) -> Tensor:
    best = torch.tensor(-1.0)
    threshold = image.min()
    for t in torch.linspace(image.min().item(), image.max().item(), 5):
        below, above = image <= t, image > t
        if not above.any():
            continue
        spread = (image[below].mean() - image[above].mean()) ** 2
        weight = below.float().mean() * above.float().mean()
        if weight * spread > best:
            best = weight * spread
            threshold = t
    return threshold


@program(draw(3, 8, 8), draw(3, 8, 8, seed=1) * 0.01, torch.full((3, 8, 8), 200.0))
def normalise_image(image: Tensor) -> Tensor:
    if image.max() > 10:
        image = image / 255
    elif image.std() < 0.1:
        image = (image - image.mean()) / (image.std() + 1e-3)
    while image.abs().max() > 1:
        image = image * 0.5
    return image


@program(draw(1, 1, 8, 8), draw(1, 1, 8, 8, seed=1) * 9, torch.ones(1, 1, 8, 8))
def pyramid_until_smooth(image: Tensor) -> tuple[Tensor, int]:
    level = 0
    while image.shape[-1] > 1:
        if image.std(correction=0) < 0.3:
            break
        image = torch.nn.functional.avg_pool2d(image, 2)
        level += 1
    return image.mean(), level


@program((draw(3, 2), number(0.5)), (draw(3, 2), number(-5.0)), (torch.zeros(3, 2), number(3.0)))
def ransac_line(points: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    best_count = torch.tensor(-1)
    best = torch.zeros(2)
    for i in range(3):
        for j in range(i + 1, 3):
            direction = points[j] - points[i]
            if direction[0].abs() < 1e-6:
                continue
            slope = direction[1] / direction[0]
            offset = points[i, 1] - slope * points[i, 0]
            residuals = (points[:, 1] - slope * points[:, 0] - offset).abs()
            count = (residuals < tolerance).sum()
            if count > best_count:
                best_count, best = count, torch.stack([slope, offset])
    return best, best_count


@program(ints(2, 3, 1), ints(1, 1, 1), ints(4, 2, 3))
def positions_of_a_grid(grid: Tensor) -> Tensor:
    frames, high, wide = grid.tolist()
    rows = torch.arange(high).unsqueeze(1).expand(-1, wide)
    columns = torch.arange(wide).unsqueeze(0).expand(high, -1)
    return torch.stack([rows.flatten(), columns.flatten()], -1).repeat(frames, 1)


@program((draw(6, 2), ints(2, 4)), (draw(6, 2), ints(6, 0)), (draw(6, 2), ints(1, 5)))
def pooled_by_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([part * (i + 1) for i, part in enumerate(x.split(lengths.tolist()))])


@program(draw(3, 4), draw(3, 4, seed=1), draw(3, 4, seed=2) * -9)
def tensor_of_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    largest = [row.max() for row in x]
    return torch.tensor(largest), torch.tensor([[largest[0].double(), 1], [len(x), largest[1]]])


@program((draw(6), ints(2, 4)), (draw(6), ints(-1, 3)), (draw(6), ints(0, 1)))
def side_that_is_shorter(x: Tensor, n: Tensor) -> Tensor:
    if n.sum() > 4:
        y = x[: n[0].item()]
    else:
        y = x[n[1].item() :]
    return torch.cat([y, x]).max() + y.sum()
