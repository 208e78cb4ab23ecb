"""The joint search: pipelines, micro-batches, sharding and recomputation with every split."""
