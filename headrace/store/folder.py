"""The weights of a Hugging Face folder, to run a model forward only.

    at hand      a segment's slab is filled once, when the store is made
    on disk      filled from the folder's files whenever the segment is fetched, and sent on to a device apart

Nothing is written, so there is no state, no gradient and no update: those are `headrace.store.store.Store`'s.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.models.folder import FolderWeights
from headrace.models.segments import Segment
from headrace.store.files import aligned
from headrace.store.layout import layout_of
from headrace.store.placement import Placement, apart
from headrace.store.transfer import Mark, transfer_to


class FolderStore:
    """Weights that are read only. Parameters of segments at hand are views of their slabs."""

    def __init__(
        self,
        segments: Sequence[Segment],
        weights: FolderWeights,
        device: torch.device,
        placements: Sequence[Placement],
    ):
        """Reads the segments placed on the device. Raises UserError where a tensor is missing or not what the model
        has."""
        self.segments, self.weights, self.device = list(segments), weights, device
        self.placements = list(placements)
        self.transfer = transfer_to(device) if apart(device, placements) else None
        self.layouts = [layout_of(segment, ()) for segment in segments]
        self.owner = {entry.name: i for i, layout in enumerate(self.layouts) for entry in layout.entries}
        self.read_bytes = 0
        """Bytes of fp32 weights filled in so far."""
        for i, (segment, layout) in enumerate(zip(self.segments, self.layouts, strict=True)):
            if self.placements[i] == "device" and layout.entries:
                slab = aligned(4 * layout.size).view(torch.float32)[: layout.size]
                self.load(i, slab)
                slab = slab.to(device)
                for entry in layout.entries:
                    segment.parameters[entry.name].data = entry.view(slab)

    def load(self, i: int, slab: Tensor) -> None:
        """Fill the slab of segment i (size,) fp32 in CPU memory."""
        for entry in self.layouts[i].entries:
            self.weights.read(entry.name, entry.view(slab))
        self.read_bytes += 4 * self.layouts[i].num_parameters

    def host_slab(self, i: int) -> Tensor | None:
        """None: every fetch reads the files."""

    def sent(self, i: int, mark: Mark) -> None:
        """Nothing writes to what is sent but the next fetch, which waits."""

    def device_state(self, i: int) -> None:
        """There is none: nothing trains."""

    def close(self) -> None:
        """Files are open only while they are read."""
        if self.transfer is not None:
            self.transfer.close()
