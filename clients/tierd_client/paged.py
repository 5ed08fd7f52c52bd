"""An engine's paged tensors as the blocks of a layout: which page of which tensor is which piece of a block.

    paged = PagedKV(layout, kv_caches)                     # one tensor per layer: (2, pages, tokens, heads, dim)
    ns.put_pages(ids, paged, pages)                        # block i lies in page pages[i] of every layer
    ns.get_pages(ids, paged, pages)                        # and back

A block is what its layout says, part after part and layer after layer within it, wherever the pieces lie in the
engine. They are copied between pages and slots without a buffer in between where both are host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tierd_client.errors import InvalidArgument
from tierd_client.format import U8Array
from tierd_client.layout import Group, Layout, Part
from tierd_client.paged_device import DevicePages
from tierd_client.paged_host import HostPages
from tierd_client.payload import dtype_bits, is_tensor, torch_name
from tierd_client.staging import copier_of

PageNumbers = NDArray[np.int64]
"""(blocks, pages per block)."""

OfLayer = Callable[[int], None]
"""Told the number of a layer."""


class PageCopies(Protocol):
    """Copies between pages and blocks, for one call. `blocks`: flat uint8 host memory, one for each row of `pages`.
    With a callback they go layer by layer over all blocks; without one the order is theirs."""

    def gather(self, pages: PageNumbers, blocks: Sequence[U8Array], before: OfLayer | None) -> None:
        """Pages into blocks; `before` returns when the pages of that layer are written."""

    def scatter(self, pages: PageNumbers, blocks: Sequence[U8Array], after: OfLayer | None) -> None:
        """Blocks into pages; `after` is called when those of that layer are there."""


class PagedKV:
    """The tensors of one group of a layout, for as long as the engine keeps them: they are referred to, not copied.

    `tensors` has one tensor for each layer (the first axis of every part's shape), numpy or torch, all in host
    memory or all on one GPU. Of a group with one part (MLA) each is (pages, *page); of one with several, k and v
    for instance, (parts, pages, *page), or (pages, parts, *page) with `page_axis=0`. A mapping from part to such a
    list gives them apart, each (pages, *page). One array whose first axis is the layers does as well. `page` is the
    part's shape without its layers; with fewer tokens than a block, a block takes `pages_per_block` pages. Elements
    are of the part's dtype; for dtypes that numpy lacks unsigned integers of their size do. Strides may be any
    positive ones; copies are fast where pieces, strides and addresses are multiples of 256 bytes.

    Raises InvalidArgument naming the tensor. Thread-safe.
    """

    def __init__(
        self, layout: Layout, tensors: Any, *, group: int = 0, page_axis: int | None = None,
    ) -> None:
        if not isinstance(layout, Layout):
            raise InvalidArgument(f"layout: {layout!r} is no Layout")
        if not 0 <= group < len(layout.groups):
            raise InvalidArgument(f"group: {group}, the layout has {len(layout.groups)}")
        self.group = layout.groups[group]
        self.layers = _layers_of(self.group)
        named = _views(self.group, self.layers, tensors, page_axis)
        first_name, first = named[0][0]
        self.page_count = len(first)
        self.pages_per_block = _pages_per_block(self.group, self.group.parts[0], first)
        self._device = _device_of(first)
        self._read_only = ""
        for part, of_part in zip(self.group.parts, named, strict=True):
            for name, view in of_part:
                self._check(name, part, view, first_name)
        views = [[view for _, view in of_part] for of_part in named]
        if self._device is None:
            self._pages: Any = HostPages(views, self.pages_per_block)
        else:
            self._pages = DevicePages(views, self.pages_per_block)
            copier_of(self._device, "tensors")

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.group.block_bytes

    @property
    def on_device(self) -> bool:
        """Whether the tensors are on a GPU."""
        return self._device is not None

    def numbers(self, page_numbers: Any, blocks: int, *, writes: bool) -> PageNumbers:
        """Page numbers as given to a call: (blocks,), or (blocks, pages_per_block) where that is more than one.
        InvalidArgument for another shape, for a page that is not there, and for what `writes` and cannot: a page
        twice, a read-only tensor."""
        if writes and self._read_only:
            raise InvalidArgument(f"{self._read_only}: read-only")
        given = _integers(page_numbers)
        shapes = [(blocks, self.pages_per_block)] + ([(blocks,)] if self.pages_per_block == 1 else [])
        if given.shape not in shapes:
            raise InvalidArgument(f"page_numbers: shape {given.shape} for {blocks} blocks; {shapes[-1]} is wanted")
        pages = given.reshape(blocks, self.pages_per_block)
        wrong = np.argwhere((pages < 0) | (pages >= self.page_count))
        if len(wrong):
            block, place = wrong[0]
            raise InvalidArgument(
                f"page_numbers[{block}]: {pages[block, place]} is not from 0 to {self.page_count - 1}")
        if writes:
            _refuse_twice(pages)
        return pages.astype(np.int64)

    def copies(self) -> PageCopies:
        """For one call, made on the caller's thread: on a GPU it follows the stream that is current there."""
        if self._device is None:
            copies: PageCopies = self._pages
            return copies
        return self._pages.copies(copier_of(self._device, "tensors"))  # type: ignore[no-any-return]

    def _check(self, name: str, part: Part, view: Any, first_name: str) -> None:
        if _pages_per_block(self.group, part, view) != self.pages_per_block or not self.pages_per_block:
            raise InvalidArgument(_misfit(name, part, view))
        if len(view) != self.page_count:
            raise InvalidArgument(f"{name}: {len(view)} pages, {first_name} has {self.page_count}")
        if _device_of(view) != self._device:
            places = f"on {_device_of(view) or 'cpu'}, {first_name} on {self._device or 'cpu'}"
            raise InvalidArgument(f"{name}: {places}; one PagedKV has tensors of one device")
        if not _has_dtype(view, part.dtype):
            raise InvalidArgument(f"{name}: {view.dtype}, part {part.name} has {part.dtype}")
        strides = view.strides if isinstance(view, np.ndarray) else view.stride()
        if any(size > 1 and stride <= 0 for size, stride in zip(view.shape, strides, strict=True)):
            raise InvalidArgument(f"{name}: strides {tuple(strides)}; a page's bytes lie at positive ones")
        if isinstance(view, np.ndarray) and not view.flags.writeable and not self._read_only:
            self._read_only = name


def _layers_of(group: Group) -> int:
    layers = [part.shape[0] for part in group.parts]
    if any(one != layers[0] or len(part.shape) < 2 for one, part in zip(layers, group.parts, strict=True)):
        shapes = ", ".join(f"{part.name} {part.shape}" for part in group.parts)
        raise InvalidArgument(f"layout: parts {shapes}; each must be of as many layers, its first axis")
    return layers[0]


def _views(group: Group, layers: int, tensors: Any, page_axis: int | None) -> list[list[tuple[str, Any]]]:
    """By part and layer: a tensor's name for errors, and the tensor with the pages as its first axis."""
    names = [part.name for part in group.parts]
    if isinstance(tensors, Mapping):
        if page_axis is not None:
            raise InvalidArgument(f"page_axis: {page_axis} has no meaning for tensors by part")
        if sorted(tensors) != sorted(names):
            raise InvalidArgument(f"tensors: of parts {sorted(tensors)}, the layout has {sorted(names)}")
        return [_listed(f"tensors[{name!r}]", tensors[name], layers) for name in names]
    together = _listed("tensors", tensors, layers)
    if len(names) == 1:
        if page_axis not in (None, 0):
            raise InvalidArgument(f"page_axis: {page_axis!r}; with one part the pages are the first axis")
        return [together]
    if page_axis not in (None, 0, 1):
        raise InvalidArgument(f"page_axis: {page_axis!r} is neither 0 nor 1")
    for name, tensor in together:
        parts = tensor.shape[1 if page_axis == 0 else 0] if tensor.ndim > 1 else 0
        if parts != len(names):
            raise InvalidArgument(f"{name}: shape {tuple(tensor.shape)}; the axis beside the pages has "
                                  f"{len(names)} parts ({', '.join(names)})")
    return [
        [(name, tensor[:, part] if page_axis == 0 else tensor[part]) for name, tensor in together]
        for part in range(len(names))
    ]


def _listed(name: str, tensors: Any, layers: int) -> list[tuple[str, Any]]:
    if not isinstance(tensors, Iterable):
        raise InvalidArgument(f"{name}: {type(tensors).__name__} is no list of tensors")
    listed = list(tensors)
    if len(listed) != layers:
        raise InvalidArgument(f"{name}: {len(listed)} layers, the layout has {layers}")
    for layer, tensor in enumerate(listed):
        if not isinstance(tensor, np.ndarray) and not is_tensor(tensor):
            raise InvalidArgument(f"{name}[{layer}]: {type(tensor).__name__} is neither an array nor a tensor")
        if tensor.ndim < 2 or not all(tensor.shape):
            raise InvalidArgument(f"{name}[{layer}]: shape {tuple(tensor.shape)} has no pages")
    return [(f"{name}[{layer}]", tensor) for layer, tensor in enumerate(listed)]


def _pages_per_block(group: Group, part: Part, view: Any) -> int:
    """0 for a tensor whose pages do not make a block of that part."""
    page, block = tuple(view.shape[1:]), part.shape[1:]
    if page == block:
        return 1
    by_tokens = len(page) == len(block) and block[0] == group.block_tokens and page[1:] == block[1:]
    return block[0] // page[0] if by_tokens and block[0] % page[0] == 0 else 0


def _misfit(name: str, part: Part, view: Any) -> str:
    return (f"{name}: pages of shape {tuple(view.shape[1:])}; part {part.name} has {part.shape[1:]} a layer, or "
            "fewer tokens that divide it")


def _has_dtype(view: Any, dtype: str) -> bool:
    accepted = {dtype, torch_name(dtype), dtype_bits(dtype)}
    if isinstance(view, np.ndarray):
        return view.dtype.isnative and view.dtype.name in accepted
    return str(view.dtype).removeprefix("torch.") in accepted


def _device_of(view: Any) -> Any:
    """A tensor's device; None for host memory."""
    return None if isinstance(view, np.ndarray) or view.device.type == "cpu" else view.device


def _integers(values: Any) -> NDArray[Any]:
    try:
        given = np.asarray(values.cpu() if is_tensor(values) else values)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"page_numbers: not numbers ({error})") from error
    if given.dtype.kind not in "iu" and given.size:
        raise InvalidArgument(f"page_numbers: {given.dtype}, not integers")
    return given


def _refuse_twice(pages: NDArray[Any]) -> None:
    flat = pages.reshape(-1)
    order = np.argsort(flat, kind="stable")
    again = np.flatnonzero(np.diff(flat[order]) == 0)
    if len(again):
        place = order[again[0] + 1]
        raise InvalidArgument(f"page_numbers[{place // pages.shape[1]}]: page {flat[place]} would be written twice")
