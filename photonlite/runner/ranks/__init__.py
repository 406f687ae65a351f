"""Tensor parallelism: several processes run one model, each on a card of its own; see `ranks.leader`."""
