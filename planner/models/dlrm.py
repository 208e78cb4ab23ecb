"""DLRM: tables of categories and an MLP of dense features, which meet in products of pairs."""

from __future__ import annotations

from msgspec import Struct

from costmodels.graph import Network
from planner.models.builder import Builder

SOURCE = (
    'Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and '
    'Recommendation Systems", as configured in {}'
)
DENSE = 13


class Recommendation(Struct, frozen=True, kw_only=True):
    """One configuration.

    Parameters
    ----------
    config
        Where it is published.
    rows
        Rows of each table. [items]
    bottom, top
        Features of the layers of both MLPs. [items]
    """

    config: str
    rows: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]


CONFIGS = {
    "dlrm": Recommendation(
        config="bench/dlrm_s_criteo_kaggle.sh of facebookresearch/dlrm, on Criteo's Kaggle data",
        rows=(
            *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
            *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
        ),
        bottom=(512, 256, 64, 16),
        top=(512, 256, 1),
    ),
    "dlrm-mlperf": Recommendation(
        config="MLPerf Training v1, on Criteo's terabyte of clicks with at most 40 million rows",
        rows=(
            *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346),
            *(10, 2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972),
            *(108, 36),
        ),
        bottom=(512, 256, 128),
        top=(1024, 1024, 512, 256, 1),
    ),
}


def _mlp(net: Builder, name: str, features: tuple[int, ...]) -> None:
    for number, filters in enumerate(features):
        net.add(f"{name}.{number}", "linear", filters=filters)
        last = name == "top" and number == len(features) - 1
        if not last:
            net.add(f"{name}.{number}.relu", "activation")


def dlrm(name: str, dense: int) -> Network:
    """A configuration of DLRM.

    Parameters
    ----------
    name
        One of `CONFIGS`.
    dense
        Dense features of a sample, before those of the tables. [items]
    """
    of = CONFIGS[name]
    net = Builder(channel=dense + len(of.rows))
    net.add("dense", "take", axis="channel", count=dense)
    _mlp(net, "bottom", of.bottom)
    net.add("tables", "embedding_tables", "input", rows=of.rows, filters=of.bottom[-1])
    net.add("interaction", "interaction", f"bottom.{len(of.bottom) - 1}.relu", "tables")
    _mlp(net, "top", of.top)
    net.add("loss", "loss")
    return net.network(
        name,
        source=SOURCE.format(of.config),
        notes="Gradients and updates are those of whole tables, not of the rows that were read.",
    )
