"""The fitting scripts, on made-up data."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.compute.surface import Surface, surface_time

TRUE = Surface(
    efficiency=0.6,
    tile_exponent=0.3,
    blocks_per_sm=2.0,
    quantisation=0.7,
    split_depth=256,
    prologue_depth=100,
    bandwidth=0.6,
    sharpness=3.0,
)


def test_a_fit_recovers_the_surface_that_made_the_timings() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("scipy")
    from benchmarks.fitting import data as sd
    from benchmarks.fitting.fits import PRODUCT, fit

    generator = np.random.default_rng(1)
    m, n, k = np.exp(generator.uniform(np.log(16), np.log(8192), size=(3, 600))).round()
    work = sd.product_work("linear", np.ones(1), m, n, k)
    device = sd.DEVICES["NVIDIA V100"]
    noise = np.exp(generator.normal(0, 0.05, size=600))
    offset = 20e-6
    timings = sd.Timings(
        source=sd.TimingSource(name="made up", licence="none", software="none"),
        device=device,
        precision="fp32",
        parts={"forward": work},
        seconds=offset + surface_time(TRUE, work, device, "fp32") * noise,
        held_out=generator.random(600) < 0.25,
    )
    fitted = fit([timings], {"any": PRODUCT})
    (error,) = fitted.errors
    # The noise alone has a mean absolute error of 4 %.
    assert error.held_out_error < 0.06
    assert abs(error.held_out_bias) < 0.02
    assert error.offset == pytest.approx(offset, rel=0.25)
    assert fitted.surfaces["any"].efficiency == pytest.approx(TRUE.efficiency, rel=0.1)
