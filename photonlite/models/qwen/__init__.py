"""The Qwen-VL family: Qwen2.5-VL and Qwen3-VL, dense."""
