"""What weights in 8 and 4 bits cost in accuracy, and gain in time and memory."""
