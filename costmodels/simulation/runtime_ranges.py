"""What the figures of runtimes can be: the least, the most, the unit."""

from __future__ import annotations

RANGES = {
    "bucket": (1.0, 1e18, "B"),
    "first_bucket": (1.0, 1e18, "B"),
    "fusion": (1.0, 1e18, "B"),
    "cycle": (0.0, 60.0, "s"),
    "negotiation_base": (0.0, 60.0, "s"),
    "negotiation_per_rank": (0.0, 60.0, "s"),
    "launch_time": (0.0, 1.0, "s"),
    "outside_layers": (0.0, 60.0, "s"),
    "activation_copies": (0.0, 100.0, ""),
    "activation_waits": (0.0, 100.0, ""),
    "server_rate": (1e3, 1e18, "B/s"),
    "stack_bandwidth": (1e3, 1e18, "B/s"),
    "cpu_bandwidth": (1e3, 1e18, "B/s"),
    "servers": (0, 2**20, ""),
    "devices_per_cpu_link": (1, 2**20, ""),
    "logit_kept": (0.0, 64.0, "B"),
    "logit_scratch": (0.0, 64.0, "B"),
    "collective_launches": (0.0, 100.0, ""),
    "communicator": (0.0, 1e18, "B"),
    "communicator_of_two": (0.0, 1e18, "B"),
    "switch_buffer": (0.0, 1e18, "B"),
    "switch_tree": (0.0, 1e18, "B"),
    "launches_ahead": (0, 2**20, ""),
    "check_near": (0.0, 60.0, "s"),
    "check_far": (0.0, 60.0, "s"),
}
