"""What a layer costs under each of many distributions, in seconds and bytes."""
