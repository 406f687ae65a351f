"""PaliGemma 2 on fused kernels, with the same weights and the results of the modules beside this folder."""
