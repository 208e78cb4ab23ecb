"""What a layer costs on a machine under a distribution, in seconds and bytes."""
