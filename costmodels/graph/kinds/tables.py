"""Recommendation models: tables of categories, and products of what they say with each other."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.kinds.tensors import features_axis, relabel
from costmodels.graph.layer import Axis, Layer, Product, Tensor


@layer_kind("embedding_tables")
def embedding_tables(
    name: str, inputs: Sequence[Tensor], *, rows: Sequence[int], filters: int
) -> Layer:
    """One look-up in each of several tables; a split of the tables sends what they say around.

    Tables are taken as divided so that every rank holds equally many rows. The gradient and the
    update are those of whole tables.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    rows
        Rows of each table. [items]
    filters
        Features of each row. [items]
    """
    (x,) = inputs
    if not rows or min(rows) < 1:
        raise InputError(
            f"layer '{name}': every table must have at least 1 row but rows are {list(rows)}; "
            "correct them"
        )
    samples, count = x.extent("sample"), len(rows)
    y = (
        Axis(name="sample", extent=samples, dim="sample"),
        Axis(name="table", extent=count, dim="table"),
        Axis(name="hidden", extent=filters, dim="filter"),
    )
    dims = {"sample": samples, "table": count, "filter": filters}
    return Layer(
        name=name,
        kind="embedding_tables",
        operation="embedding",
        dims=dims,
        inputs=(relabel(x, {"sample": "sample"}),),
        output=Tensor(axes=y),
        weight_dims=("table", "filter"),
        parameters=sum(rows) * filters,
        keeps_inputs=True,
        splittable=frozenset(dims),
    )


@layer_kind("interaction", num_inputs=2)
def interaction(name: str, inputs: Sequence[Tensor]) -> Layer:
    """Products of all pairs of features, dense ones and those of tables, after the dense ones.

    The whole square of products is computed, and half of it kept (Naumov et al. 2019).
    """
    dense, sparse = inputs
    width = dense.extent(features_axis(dense))
    if sparse.extent("hidden") != width:
        raise InputError(
            f"layer '{name}': the dense features must be as many as those of a row of the tables "
            f"but are {width} and {sparse.extent('hidden')}; correct the layers before it"
        )
    samples, vectors = dense.extent("sample"), sparse.extent("table") + 1
    y = (
        Axis(name="sample", extent=samples, dim="sample"),
        Axis(name="channel", extent=width + vectors * (vectors - 1) // 2, dim=None),
    )
    product = Product(
        batch=("sample",),
        rows=vectors,
        columns=vectors,
        contracted=width,
        macs=vectors * vectors * width,
    )
    return Layer(
        name=name,
        kind="interaction",
        operation="matmul",
        dims={"sample": samples},
        inputs=(relabel(dense, {"sample": "sample"}), relabel(sparse, {"sample": "sample"})),
        output=Tensor(axes=y),
        keeps_inputs=True,
        splittable=frozenset({"sample"}),
        products=(product,),
    )
