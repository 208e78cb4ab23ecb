"""Which timings each family of devices is fitted to, and what families borrow of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from benchmarks.fitting import data as sd
from benchmarks.fitting.aiconfigurator import timed_attention, timed_products
from benchmarks.fitting.akin import AKIN_ONLY, kepler, turing
from benchmarks.fitting.conv import (
    CONV_MOST,
    DIRECTIONS,
    HEURISTIC,
    P100,
    T4,
    conv_deepbench,
    conv_forward,
)
from benchmarks.fitting.files import SurfaceEntry
from benchmarks.fitting.fits import (
    ATTENTION,
    ATTENTION_LEAST,
    CONV,
    CONV_PLAIN,
    LEVEL,
    PRODUCT,
    WRITTEN_PRODUCT,
    Fitted,
    fit,
    fit_share,
)
from benchmarks.fitting.traffic import aceso_traffic, pipedream_traffic
from costmodels.compute.attention import BACKWARD_RATE
from costmodels.compute.surface import UNSPLIT, Surface

BACKWARD = DIRECTIONS[1:]
# A source that calls the library itself and times it on the GPU shows how many kernels a pass has.
BARE = ("DeepBench", "aiconfigurator")
TYPICAL_LATENCY = 5e-6
TENSOR_ALIGNMENT = 8
FP8_ALIGNMENT = 16
DEEPBENCH_FAMILIES = {
    "titan_xp": "NVIDIA GTX TitanXp",
    "1080_ti": "NVIDIA GTX 1080 Ti",
    "titan_x_pascal": "Nvidia TitanX Pascal",
    "titan_x_maxwell": "Nvidia TitanX",
    "m40": "Nvidia Tesla M40",
}
BF16_FAMILIES = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm"}
# Convolutions in TF32 do not reach the share of the peak that BF16 products do: layouts are changed
# around them. One factor makes ResNet-50 and VGG16 training on A100 come out (NVIDIA
# DeepLearningExamples, Lambda); ResNet-50 on H100, which it was not fitted to, is then 15 % fast.
TF32_RATE = 0.6
# GA102's tensor cores have a quarter of A100's peak and are kept busier; from ResNet-50 and VGG16
# in TF32 and mixed precision (Lambda, timm).
GA102_RATE = 1.6
GA102_NOTE = f", at up to {GA102_RATE} of A100's share of the peak, as whole networks show"
GA102_FULL_NOTE = (
    ", at A100's share of the peak; TF32 keeps it, as on the RTX 3090 of the same chip"
)
BACKWARD_RULE = (
    f"backward as forward at {BACKWARD_RATE:.2f} of its rate, with the products and the traffic of "
    "FlashAttention-2; the errors are the forward pass's"
)
NEUSIGHT_DEVICES = {P100: "P100 16GB PCIe", T4: "T4"}


def _entries(operation: str, precision: str, fitted: Fitted) -> list[SurfaceEntry]:
    bare = [e.offset for e in fitted.errors if e.source.name.startswith(BARE)]
    kernels = min(4.0, max([1.0, *(offset / TYPICAL_LATENCY for offset in bare)]))
    return [
        SurfaceEntry(
            operation=operation,
            direction=direction,
            precision=precision,
            value=replace(surface, kernels=kernels),
            errors=tuple(fitted.errors),
        )
        for direction, surface in fitted.surfaces.items()
    ]


class Fitter:
    """Fits every family; V100 and P100 first, because others borrow from them."""

    def __init__(self, data: Path) -> None:
        self.tables = data / "tables"
        self.grouped: dict[str, Surface] = {}
        self.conv_over_product: dict[str, tuple[float, float, float]] = {}
        self.bf16_products: dict[str, Fitted] = {}
        self.occupied: dict[str, Surface] = {}
        self.attention_bandwidth = 0.0

    def v100(self) -> list[SurfaceEntry]:
        """V100: FP32 of four sources, mixed precision of DeepBench, shares of the bandwidth."""
        tables, gpu, pcie = self.tables, "NVIDIA V100", "V100 32GB PCIe"
        timings = sd.neusight_product(tables, pcie, "linear")
        linear = fit(timings + sd.deepbench_product(tables, gpu, "fp32"), {"any": PRODUCT})
        matmul = fit(sd.neusight_product(tables, pcie, "matmul"), {"any": PRODUCT})
        # PyTorch's heuristics picked slower algorithms for Aceso and NeuSight than DeepBench's
        # search did. PipeDream's sweep differs by shape and is left to judge.
        forward = conv_forward(
            self.tables,
            sd.deepbench_conv(tables, gpu, "fp32", "forward") + sd.aceso_conv(tables, "forward"),
            pcie,
        )
        occupied = forward.surfaces["forward"]
        backward = fit(
            [t for d in BACKWARD for t in sd.deepbench_conv(tables, gpu, "fp32", d)]
            + sd.aceso_conv(tables, "backward"),
            {"backward_data": LEVEL, "backward_weight": CONV},
            fixed=dict.fromkeys(BACKWARD, occupied),
            slower=HEURISTIC,
            most=CONV_MOST,
        )
        dense = [forward, backward]
        grouped = [self._grouped("forward", forward), self._grouped("backward", backward)]
        conv = []
        for plain, by_groups in zip(dense, grouped, strict=True):
            self.grouped |= by_groups.surfaces
            errors = [*plain.errors, *by_groups.errors]
            conv += _entries("conv", "fp32", Fitted(surfaces=by_groups.surfaces, errors=errors))
        half, conv_half = self._v100_half()
        entries = _entries("linear", "fp32", linear) + _entries("matmul", "fp32", matmul)
        return entries + conv + _entries("linear", "fp16", half) + conv_half + self._shares()

    def _grouped(self, direction: str, dense: Fitted) -> Fitted:
        """Adds the direct algorithm for grouped convolutions to surfaces."""
        timings = [
            dataclasses.replace(
                t, source=dataclasses.replace(t.source, name=f"{t.source.name} (grouped)")
            )
            for t in sd.pipedream_conv(self.tables, direction, grouped=True)
        ]
        names = dict.fromkeys(dense.surfaces, ("direct", "direct_bandwidth"))
        start = {d: replace(s, direct=0.1, direct_bandwidth=0.5) for d, s in dense.surfaces.items()}
        return fit(timings, names, fixed=start)

    def _v100_half(self) -> tuple[Fitted, list[SurfaceEntry]]:
        gpu = "NVIDIA V100"
        base = {"any": Surface(**dict.fromkeys(PRODUCT, 1.0), alignment=TENSOR_ALIGNMENT)}
        timings = sd.deepbench_product(self.tables, gpu, "fp16")
        linear = fit(timings, {"any": PRODUCT}, fixed=base)
        product = linear.surfaces["any"]
        conv = []
        for direction in DIRECTIONS:
            timings = sd.deepbench_conv(self.tables, gpu, "fp16", direction)
            own = fit(timings, {direction: CONV_PLAIN}, fixed={direction: base["any"]})
            conv += _entries("conv", "fp16", self._with_groups(own))
            names = ("efficiency", "bandwidth", "strided")
            relative = fit(timings, {direction: names}, fixed={direction: product})
            surface = relative.surfaces[direction]
            self.conv_over_product[direction] = (
                surface.efficiency / product.efficiency,
                surface.bandwidth / product.bandwidth,
                surface.strided,
            )
        return linear, conv

    def _shares(self) -> list[SurfaceEntry]:
        """Shares of the bandwidth: Aceso's where it timed the pass, its times being cleaner."""
        bandwidth = sd.DEVICES["NVIDIA V100"].memory_bandwidth
        entries: dict[tuple[str, str], SurfaceEntry] = {}
        for rows in aceso_traffic(self.tables) + pipedream_traffic(self.tables):
            share, error = fit_share(rows, bandwidth)
            key = (rows.operation, rows.direction)
            print(f"  share {key} {rows.source.name}: {share:.3f}")
            if key in entries:
                known = entries[key]
                share = float((known.value * share) ** 0.5)  # type: ignore[operator]
                entries[key] = dataclasses.replace(
                    known, value=share, errors=(*known.errors, error)
                )
                continue
            entries[key] = SurfaceEntry(
                operation=rows.operation,
                direction=rows.direction,
                precision="",
                value=share,
                errors=(error,),
            )
        return list(entries.values())

    def _with_groups(self, fitted: Fitted) -> Fitted:
        surfaces = {
            d: replace(
                s, direct=self.grouped[d].direct, direct_bandwidth=self.grouped[d].direct_bandwidth
            )
            for d, s in fitted.surfaces.items()
        }
        return Fitted(surfaces=surfaces, errors=fitted.errors)

    def deepbench(self, gpu: str, precision: str, *, alignment: int = 1) -> list[SurfaceEntry]:
        """Products and convolutions of a device that DeepBench timed, with NeuSight's if any."""
        base = Surface(**dict.fromkeys(PRODUCT, 1.0), alignment=alignment)
        timings = sd.deepbench_product(self.tables, gpu, precision)
        pcie = NEUSIGHT_DEVICES.get(gpu) if precision == "fp32" else None
        entries = []
        if pcie:
            timings = timings + sd.neusight_product(self.tables, pcie, "linear")
            matmul = fit(sd.neusight_product(self.tables, pcie, "matmul"), {"any": PRODUCT})
            entries += _entries("matmul", precision, matmul)
        linear = fit(timings, {"any": PRODUCT}, fixed={"any": base}, slower=HEURISTIC)
        entries += _entries("linear", precision, linear)
        for fitted in conv_deepbench(self.tables, gpu, precision, base, self.occupied, pcie):
            entries += _entries("conv", precision, self._with_groups(fitted))
        return entries

    def a100_fp32(self) -> list[SurfaceEntry]:
        """A100 without tensor cores; the backward passes are left to V100's coefficients."""
        entries = []
        for operation in ("linear", "matmul"):
            timings = sd.neusight_product(self.tables, "A100 40GB PCIe", operation)
            entries += _entries(operation, "fp32", fit(timings, {"any": PRODUCT}))
        forward = fit(sd.neusight_conv(self.tables, "A100 80GB PCIe"), {"forward": CONV})
        return entries + _entries("conv", "fp32", self._with_groups(forward))

    def bf16(self, system: str) -> list[SurfaceEntry]:
        """Products as measured; convolutions as implicit products, by V100's conv over product."""
        base = Surface(**dict.fromkeys(PRODUCT, 1.0), alignment=TENSOR_ALIGNMENT)
        apart = timed_products(self.tables, system, apart=True)
        written = fit(apart, {"any": WRITTEN_PRODUCT}, fixed={"any": base})
        entries = _entries("linear", "bf16", written) + self._attention(system)
        # of the form of V100's surfaces, to which the ratio belongs
        timings = timed_products(self.tables, system)
        linear = fit(timings, {"any": PRODUCT}, fixed={"any": base})
        self.bf16_products[system] = linear
        note = "; ResNet-50 and VGG16 training on A100 came out within 20 % where nothing was fused"
        entries += self._implicit(linear, "bf16", 1.0, note)
        note = f", at {TF32_RATE} of their rate, as whole networks on A100 show"
        return entries + self._implicit(linear, "tf32", TF32_RATE, note)

    def fp8(self, system: str) -> list[SurfaceEntry]:
        """Products in FP8 as measured."""
        base = Surface(**dict.fromkeys(PRODUCT, 1.0), alignment=FP8_ALIGNMENT)
        apart = timed_products(self.tables, system, apart=True, precision="fp8")
        # how often the cast goes over its tensor is fitted
        laden = frozenset(timings.source.name for timings in apart)
        fitted = fit(apart, {"any": WRITTEN_PRODUCT}, fixed={"any": base}, laden=laden)
        return _entries("linear", "fp8", fitted)

    def _attention(self, system: str) -> list[SurfaceEntry]:
        """Attention forward as measured, and the same surface for its backward pass.

        The kernel's share of the bandwidth is found on A100, where what vLLM writes beside explains
        all that moves. Elsewhere more moves than that, which is none of the kernel's.
        """
        timings = timed_attention(self.tables, system)
        start = Surface(**dict.fromkeys(ATTENTION, 1.0), tile_exponent=0.0, split_depth=UNSPLIT)
        names: tuple[str, ...] = ATTENTION
        laden = frozenset[str]()
        if self.attention_bandwidth:
            start = replace(start, bandwidth=self.attention_bandwidth)
            names = tuple(name for name in ATTENTION if name != "bandwidth")
            laden = frozenset(t.source.name for t in timings)
        fitted = fit(
            timings,
            {"forward": names},
            fixed={"forward": start},
            laden=laden,
            least=ATTENTION_LEAST,
        )
        surface = fitted.surfaces["forward"]
        if system == BF16_FAMILIES["a100"]:
            self.attention_bandwidth = surface.bandwidth
        forward = SurfaceEntry(
            operation="attention",
            direction="forward",
            precision="bf16",
            value=surface,
            errors=tuple(fitted.errors),
        )
        backward = dataclasses.replace(
            forward, direction="backward", derived=True, comment=BACKWARD_RULE
        )
        return [forward, backward]

    def ga102(self, rate: float, note: str) -> list[SurfaceEntry]:
        """Cards with GA102: whole networks on an RTX 3090 are all that is known of them."""
        linear = self.bf16_products["a100_sxm"]
        return [
            entry
            for precision in ("bf16", "tf32")
            for entry in self._implicit(linear, precision, rate, note)
        ]

    def _implicit(
        self, linear: Fitted, precision: str, calibration: float, note: str
    ) -> list[SurfaceEntry]:
        """Convolutions as implicit products, less by what V100's tensor cores lose on them."""
        product = linear.surfaces["any"]
        entries = []
        for direction, (rate, traffic, strided) in self.conv_over_product.items():
            surface = replace(
                product,
                efficiency=min(1.0, product.efficiency * rate * calibration),
                bandwidth=min(1.0, product.bandwidth * traffic),
                strided=strided,
                direct=self.grouped[direction].direct,
                direct_bandwidth=self.grouped[direction].direct_bandwidth,
            )
            comment = (
                f"convolution as implicit BF16 product at {rate:.2f} of its rate and {traffic:.2f} "
                f"of its bandwidth, the ratio found on V100 tensor cores{note}; the errors are the "
                "products'"
            )
            entries.append(
                SurfaceEntry(
                    operation="conv",
                    direction=direction,
                    precision=precision,
                    value=surface,
                    errors=tuple(linear.errors),
                    derived=True,
                    comment=comment,
                )
            )
        return entries

    def families(self) -> Mapping[str, Callable[[], list[SurfaceEntry]]]:
        """How to fit each family; those that others borrow from come first."""
        return {
            "v100": self.v100,
            "p100": lambda: self.deepbench(P100, "fp32") + self.deepbench(P100, "fp16"),
            "t4": lambda: (
                self.deepbench(T4, "fp32") + self.deepbench(T4, "fp16", alignment=TENSOR_ALIGNMENT)
            ),
            **{
                name: lambda gpu=gpu: self.deepbench(gpu, "fp32")  # type: ignore[misc]
                for name, gpu in DEEPBENCH_FAMILIES.items()
            },
            "a100": lambda: self.a100_fp32() + self.bf16("a100_sxm"),
            **{
                name: lambda system=system: self.bf16(system) + self.fp8(system)  # type: ignore[misc]
                for name, system in BF16_FAMILIES.items()
                if name != "a100"
            },
            "3090": lambda: self.ga102(GA102_RATE, GA102_NOTE),
            "a6000": lambda: self.ga102(1.0, GA102_FULL_NOTE),
            "rtx_8000": lambda: turing(self.deepbench(T4, "fp16", alignment=TENSOR_ALIGNMENT)),
            **dict.fromkeys(AKIN_ONLY, list),
            "k80": lambda: kepler(self.deepbench(P100, "fp32")),
        }
