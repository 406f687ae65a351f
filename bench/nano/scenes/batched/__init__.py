"""Training scenes, composed on the device by the hundred."""
