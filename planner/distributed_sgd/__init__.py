"""Throughput of distributed SGD: a network, kinds of workers and links in, predictions out."""
