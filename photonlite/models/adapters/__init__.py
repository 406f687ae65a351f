"""LoRA adapters: files, and low-rank terms beside the layers of a model (Hu et al., 2021)."""
