"""Blocks of weights as torch.distributed.checkpoint saves and loads them.

A checkpoint knows which box of a tensor each block is, so that what was saved under one plan is
loaded under another one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from planner.torch.apply.layout import Box


class WeightBlock(Tensor):
    """A block of a weight, which shares its memory and knows where it lies."""

    box: Box
    whole: torch.Size

    @staticmethod
    def of(x: Tensor, box: Box, whole: torch.Size) -> WeightBlock:
        """A tensor as a block.

        Parameters
        ----------
        x
            Its numbers.
        box, whole
            Which box it is, of a tensor of which extents. [items]
        """
        block: WeightBlock = x.detach().as_subclass(WeightBlock)
        block.box, block.whole = box, whole
        return block

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Extents of the whole tensor, which is what a checkpoint compares. [items]"""
        whole = getattr(self, "whole", None)
        if whole is None:
            return super().size() if dim is None else super().size(dim)
        return whole if dim is None else whole[dim]

    def _chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(
            offsets=torch.Size(start for start, _ in self.box),
            sizes=torch.Size(stop - start for start, stop in self.box),
        )

    def _numbers(self) -> Tensor:
        return self.as_subclass(Tensor)

    def __create_write_items__(self, name: str, block: object) -> list[WriteItem]:
        chunk = self._chunk()
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(self._numbers()),
                    size=self.whole,
                ),
            )
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._chunk()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self._numbers()
