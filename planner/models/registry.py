"""The built-in networks by name."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from costmodels.errors import InputError, closest
from costmodels.graph import Network
from planner.models.built_in import BuiltInNetwork
from planner.models.configs import config_rows, transformer
from planner.models.cosmoflow import SIZES as COSMOFLOW_SIZES
from planner.models.cosmoflow import cosmoflow
from planner.models.densenet import DEPTHS as DENSENET_DEPTHS
from planner.models.densenet import densenet
from planner.models.detection import SIZES as MASK_RCNN_SIZES
from planner.models.detection import mask_rcnn, retinanet
from planner.models.dlrm import CONFIGS as DLRM_CONFIGS
from planner.models.dlrm import DENSE as DLRM_DENSE
from planner.models.dlrm import dlrm
from planner.models.efficientdet import SIZE as EFFICIENTDET_SIZE
from planner.models.efficientdet import efficientdet_d0
from planner.models.inception import googlenet, inception_v3
from planner.models.inception_v4 import inception_v4
from planner.models.mesh import SIZES as MESH_SIZES
from planner.models.mesh import mesh
from planner.models.mobile import (
    EFFICIENTNETS,
    efficientnet,
    efficientnet_v2_s,
    mnasnet,
    mobilenet_v2,
)
from planner.models.resnet import VARIANTS as RESIDUAL
from planner.models.resnet import ResidualKind, residual
from planner.models.squeezenet import NAMES as SQUEEZENETS
from planner.models.squeezenet import squeezenet
from planner.models.ssd import RESNETS as SSD_RESNETS
from planner.models.ssd import SIZE as SSD_SIZE
from planner.models.ssd import ssd
from planner.models.unet import unet
from planner.models.unet3d import SLICE, nnunet_2d, nnunet_3d, unet3d
from planner.models.vgg import DEPTHS as VGG_DEPTHS
from planner.models.vgg import alexnet, vgg
from planner.models.vnet import vnet


def _image_models() -> dict[str, BuiltInNetwork]:
    models = {
        # a side at which the last features still have the 6 positions that the head expects
        "alexnet": BuiltInNetwork(
            description="AlexNet, one tower", make=alexnet, size=224, minimum=223
        )
    }
    for depth in VGG_DEPTHS:
        models[f"vgg{depth}"] = BuiltInNetwork(
            description=f"VGG with {depth} weighted layers",
            make=partial(vgg, depth),
            size=224,
            minimum=224,
        )
    for name, kind in RESIDUAL.items():
        models[name] = BuiltInNetwork(
            description=_residual_description(name, kind), make=partial(residual, name), size=224
        )
    models["googlenet"] = BuiltInNetwork(
        description="GoogLeNet without auxiliary classifiers", make=googlenet, size=224
    )
    models["inception_v3"] = BuiltInNetwork(
        description="Inception v3 without auxiliary classifier",
        make=inception_v3,
        size=299,
        minimum=75,
    )
    models["inception_v4"] = BuiltInNetwork(
        description="Inception v4", make=inception_v4, size=299, minimum=75
    )
    for depth in DENSENET_DEPTHS:
        models[f"densenet{depth}"] = BuiltInNetwork(
            description=f"DenseNet with {depth} weighted layers",
            make=partial(densenet, depth),
            size=224,
        )
    models["mobilenet_v2"] = BuiltInNetwork(
        description="MobileNet v2 of width 1", make=mobilenet_v2, size=224
    )
    models["mnasnet1_0"] = BuiltInNetwork(
        description="MnasNet B1 of width 1", make=mnasnet, size=224
    )
    for name, (_, _, size) in EFFICIENTNETS.items():
        models[name] = BuiltInNetwork(
            description=f"EfficientNet {name[-2:].upper()}",
            make=partial(efficientnet, name),
            size=size,
        )
    models["efficientnet_v2_s"] = BuiltInNetwork(
        description="EfficientNet v2 S", make=efficientnet_v2_s, size=300
    )
    for name in SQUEEZENETS:
        models[name] = BuiltInNetwork(
            description=f"SqueezeNet {name[-3:].replace('_', '.')}",
            make=partial(squeezenet, name),
            size=224,
        )
    return models


def _detectors() -> dict[str, BuiltInNetwork]:
    models = {}
    for depth in SSD_RESNETS:
        models[f"ssd300_resnet{depth}"] = BuiltInNetwork(
            description=f"SSD on ResNet with {depth} weighted layers",
            make=partial(ssd, depth),
            size=SSD_SIZE,
            sizes=(SSD_SIZE,),
        )
    models["retinanet_resnext50_32x4d"] = BuiltInNetwork(
        description="RetinaNet on ResNeXt with 50 weighted layers, 264 classes",
        make=partial(retinanet, "resnext50_32x4d"),
        size=800,
        minimum=128,
        multiple=32,
    )
    models["mask_rcnn_resnet50"] = BuiltInNetwork(
        description="Mask R-CNN on ResNet with 50 weighted layers",
        make=mask_rcnn,
        size=max(MASK_RCNN_SIZES),
        sizes=tuple(MASK_RCNN_SIZES),
        unit="pixels of the longer side",
    )
    models["efficientdet_d0"] = BuiltInNetwork(
        description="EfficientDet D0",
        make=efficientdet_d0,
        size=EFFICIENTDET_SIZE,
        minimum=128,
        multiple=128,
    )
    return models


def _residual_description(name: str, kind: ResidualKind) -> str:
    if kind.squeeze:
        what = "SE-ResNeXt"
    elif kind.groups > 1:
        what = "ResNeXt"
    else:
        what = "Wide ResNet" if kind.group_width > 64 else "ResNet"
    also = f", {kind.groups} groups of {kind.group_width}" if kind.groups > 1 else ""
    return f"{what} with {kind.depth} weighted layers{also}"


def _science_models() -> dict[str, BuiltInNetwork]:
    models = {
        "unet": BuiltInNetwork(
            description="U-Net for segmentation, padded",
            make=unet,
            size=512,
            minimum=16,
            multiple=16,
        ),
        "unet3d": BuiltInNetwork(
            description="3-D U-Net for volumes",
            make=unet3d,
            size=128,
            minimum=32,
            multiple=32,
            unit="voxels a side",
        ),
        "nnunet-2d": BuiltInNetwork(
            description="nnU-Net for slices of 192 x 160",
            make=nnunet_2d,
            size=min(SLICE),
            sizes=tuple(SLICE),
            unit="pixels of the longer side",
        ),
        "nnunet-3d": BuiltInNetwork(
            description="nnU-Net for volumes",
            make=nnunet_3d,
            size=128,
            minimum=32,
            multiple=32,
            unit="voxels a side",
        ),
        "vnet": BuiltInNetwork(
            description="V-Net for volumes",
            make=vnet,
            size=32,
            minimum=16,
            multiple=8,
            unit="voxels a side",
        ),
    }
    for size in (max(COSMOFLOW_SIZES), *COSMOFLOW_SIZES):
        name = f"cosmoflow-{size}" if "cosmoflow" in models else "cosmoflow"
        models[name] = BuiltInNetwork(
            description=f"CosmoFlow on volumes of 4 x {size}^3",
            make=cosmoflow,
            size=size,
            sizes=tuple(COSMOFLOW_SIZES) if name == "cosmoflow" else (size,),
            unit="voxels a side",
        )
    for size, (convs, _) in MESH_SIZES.items():
        models[f"mesh-{size // 1024}k"] = BuiltInNetwork(
            description=f"Mesh tangling, {convs} convolutions in each of six blocks",
            make=partial(mesh, size),
            size=size,
            minimum=64,
            multiple=64,
        )
    return models


def _transformers() -> dict[str, BuiltInNetwork]:
    return {
        name: transformer(
            row.config,
            f"the built-in {name}",
            name=name,
            description=row.description,
            source=row.source,
            notes=row.notes,
            fixed=row.fixed,
        )
        for row in config_rows()
        for name in row.names
    }


def _recommendation_models() -> dict[str, BuiltInNetwork]:
    return {
        name: BuiltInNetwork(
            description=f"Recommendation, 26 tables of {sum(of.rows) / 1e6:.0f} million rows",
            make=partial(dlrm, name),
            size=DLRM_DENSE,
            sizes=(DLRM_DENSE,),
            unit="dense features",
        )
        for name, of in DLRM_CONFIGS.items()
    }


BUILT_IN = MappingProxyType(
    {
        **_image_models(),
        **_detectors(),
        **_science_models(),
        **_transformers(),
        **_recommendation_models(),
    }
)


def list_models() -> tuple[str, ...]:
    """Names of the built-in networks."""
    return tuple(BUILT_IN)


def build(name: str, input_size: int | None = None) -> Network:
    """A built-in network by name.

    Parameters
    ----------
    name
        One of `BUILT_IN`.
    input_size
        Image or volume side, or sequence length; the published one by default. [items]

    Raises
    ------
    InputError
        When there is no such network, or it cannot have that input size.
    """
    if name not in BUILT_IN:
        advice = f"use one of {closest(name, list(BUILT_IN))}"
        if ":" in name:
            advice = "name a module of PyTorch like my_package.my_module:build, from its folder"
        raise InputError(
            f"the network must be a built-in one or a path that ends in .toml, .json or .onnx but "
            f"is '{name}'; {advice}"
        )
    return BUILT_IN[name].build(name, input_size)
