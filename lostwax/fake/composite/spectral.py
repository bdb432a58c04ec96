"""`stft` and `istft`, taken apart here, since C++ reads plain sizes, and data at the end of
`istft`; and the checks of sizes of Fourier transforms.

The values are those of C++ at every size. Must not compute types itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lostwax.fake.composite.sized import composite_if_symbolic
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ops.registry import aten, composite
from lostwax.ops.shapes import fail, real_dtype, require, wrap_dim
from lostwax.sym import Size, decide, eq, known, maximum

if TYPE_CHECKING:
    from lostwax.fake.mode import FakeTensorMode


def _register_check(name: str, is_half: bool) -> None:
    """Require that there is something to transform, where C++ would branch on it."""

    @composite_if_symbolic(name)
    def transform(
        mode: FakeTensorMode, self: Any, n: Any = None, dim: int = -1, norm: str | None = None
    ) -> Any:
        size = mode.adopt(self).fake_type.size
        count: Size = unwrap(n) if n is not None else size[wrap_dim(dim, len(size))]
        count = 2 * (count - 1) if is_half and n is None else count
        require(count >= 1, f"Invalid number of data points ({count}) specified")
        return NotImplemented


for _name in ("fft_fft", "fft_ifft", "fft_rfft", "fft_ihfft"):
    _register_check(_name, is_half=False)
for _name in ("fft_irfft", "fft_hfft"):
    _register_check(_name, is_half=True)


@composite_if_symbolic("stft")
def stft(
    mode: FakeTensorMode,
    self: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    x = mode.adopt(self)
    if x.fake_type.ndim > 2 or align_to_window or not n_fft:
        return NotImplemented
    hop = n_fft >> 2 if hop_length is None else hop_length
    frames = mode.call(aten.unfold.default, x, -1, n_fft, hop)
    window = _window(mode, x, n_fft, n_fft if win_length is None else win_length, window)
    if window is not None:
        frames = mode.call(aten.mul.Tensor, frames, window)
    is_complex = mode.adopt(frames).fake_type.dtype.is_complex
    scale = 1 if normalized else 0
    if is_complex:
        out = mode.call(aten._fft_c2c.default, frames, [x.fake_type.ndim], scale, True)
    else:
        half = True if onesided is None else onesided
        out = mode.call(aten._fft_r2c.default, frames, [x.fake_type.ndim], scale, half)
    out = mode.call(aten.transpose.int, out, -2, -1)
    whole = is_complex if return_complex is None else return_complex
    return out if whole else mode.call(aten.view_as_real.default, out)


def _window(
    mode: FakeTensorMode, x: FakeTensor, n_fft: int, length: int, window: Any, name: str = "stft"
) -> Any:
    """The window, padded on both sides to `n_fft` places; None if it is 1 everywhere."""
    if window is None and length == n_fft:
        return None
    if window is None:
        window = _ones(mode, x, length)
    size = mode.adopt(window).fake_type.size
    require(len(size) == 1, f"{name}: the window must be a 1-D tensor")
    require(eq(size[0], length), f"{name}: the window must have win_length = {length} elements")
    if length == n_fft:
        return window
    before = (n_fft - length) // 2
    return mode.call(aten.constant_pad_nd.default, window, [before, n_fft - length - before])


def _ones(mode: FakeTensorMode, x: FakeTensor, length: int) -> Any:
    like = {"dtype": real_dtype(x.fake_type.dtype), "device": x.fake_type.device}
    return mode.call(aten.ones.default, [length], **like)


@composite("istft")
def istft(
    mode: FakeTensorMode,
    self: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    x = mode.adopt(self)
    hop = n_fft >> 2 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    is_half = _check_spectrum(x, n_fft, hop, width, onesided)
    window = _window(mode, x, n_fft, width, window, "istft")
    if window is None:
        window = _ones(mode, x, n_fft)
    frames = mode.call(aten.transpose.int, _add_batch(mode, x), 1, 2)
    frames = _invert_frames(mode, frames, window, n_fft, normalized, is_half, return_complex)
    count = x.fake_type.size[-1]
    whole = n_fft + hop * (count - 1)
    start = n_fft // 2 if center else 0
    end = start + unwrap(length) if length is not None else whole - start
    frames = mode.call(aten.mul.Tensor, frames, mode.call(aten.view.default, window, [1, 1, n_fft]))
    signal = _overlap_add(mode, frames, n_fft, hop, whole, start, end)
    weights = mode.call(aten.pow.Tensor_Scalar, window, 2)
    weights = mode.call(aten.expand.default, weights, [1, count, n_fft])
    weights = _overlap_add(mode, weights, n_fft, hop, whole, start, end)
    _assert_covered(mode, weights)
    signal = mode.call(aten.div.Tensor, signal, weights)
    if x.fake_type.ndim == 2:
        signal = mode.call(aten.squeeze.dim, signal, 0)
    if known(whole >= end) is True:
        return signal
    return mode.call(aten.constant_pad_nd.default, signal, [0, maximum(end - whole, 0)])


def _check_spectrum(x: FakeTensor, n_fft: int, hop: int, width: int, onesided: bool | None) -> bool:
    """Check the arguments, and tell whether this is half a spectrum, as of a real signal."""
    size = x.fake_type.size
    if not x.fake_type.dtype.is_complex:
        fail(
            "istft requires a complex-valued input tensor matching the output from stft with "
            "return_complex=True."
        )
    if len(size) not in (2, 3):
        fail(f"istft: expected a tensor with 2 or 3 dimensions, but got {len(size)}")
    for n in size:
        require(n >= 1, "istft: input tensor cannot be empty.")
    if not 0 < hop <= width <= n_fft:
        fail(
            f"istft: expected 0 < hop_length <= win_length <= n_fft, but got hop_length={hop}, "
            f"win_length={width}, n_fft={n_fft}"
        )
    is_half = not decide(eq(size[-2], n_fft)) if onesided is None else onesided
    wanted = n_fft // 2 + 1 if is_half else n_fft
    text = f"istft: expected the frequency dimension to be {wanted}, but got {size[-2]}"
    require(eq(size[-2], wanted), text)
    return is_half


def _add_batch(mode: FakeTensorMode, x: FakeTensor) -> Any:
    return mode.call(aten.unsqueeze.default, x, 0) if x.fake_type.ndim == 2 else x


def _invert_frames(
    mode: FakeTensorMode,
    frames: Any,
    window: Any,
    n_fft: int,
    normalized: bool,
    is_half: bool,
    return_complex: bool,
) -> Any:
    """The signal of each frame, from its spectrum."""
    scale = 1 if normalized else 2
    if return_complex:
        if is_half:
            fail("Cannot have onesided output if window or input is complex")
        return mode.call(aten._fft_c2c.default, frames, [2], scale, False)
    if mode.adopt(window).fake_type.dtype.is_complex:
        fail("Complex windows are incompatible with return_complex=False")
    if not is_half:
        frames = mode.call(aten.slice.Tensor, frames, -1, 0, n_fft // 2 + 1)
    return mode.call(aten._fft_c2r.default, frames, [2], scale, n_fft)


def _overlap_add(
    mode: FakeTensorMode, frames: Any, n_fft: int, hop: int, whole: Size, start: int, end: Size
) -> Any:
    rows = mode.adopt(frames).fake_type.size[0]
    signal = mode.call(aten.unfold_backward.default, frames, [rows, whole], 1, n_fft, hop)
    return mode.call(aten.slice.Tensor, signal, 1, start, end)


def _assert_covered(mode: FakeTensorMode, weights: Any) -> None:
    """Assert, when the program runs, that at each place some frame's window is not zero."""
    least = mode.call(aten.min.default, mode.call(aten.abs.default, weights))
    covered = mode.call(aten.ge.Scalar, least, 1e-11)
    mode.call(aten._assert_async.msg, covered, "istft: window overlap add min: 1")
