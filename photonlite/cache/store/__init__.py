"""What was computed for images and outlives the prefix cache: tiers in host memory and on disk. No torch."""
