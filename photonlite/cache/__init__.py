"""Bookkeeping of the paged KV cache: who owns which page, and which prefixes are already computed. No tensors."""
