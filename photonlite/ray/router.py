"""The request router of Ray Serve's handles to the replicas: places each request by its key and by what is open.

Every process that asks the replicas has one of these. Their orders of replicas are the same, since they depend on
nothing but names; the open requests that one counts are those that it has sent itself.

Serve sends what this module defines by value, also its other classes: those that others compare stand elsewhere.
"""

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from photonlite.ray.placement import Placement, Target


class AffinityRouter(RequestRouter):
    """Asks the replica that a request's key belongs to first, within bounds of load; see `placement`."""

    def initialize_state(self, *, load_factor: float, least_load: int) -> None:
        self._placement = Placement(load_factor, least_load)

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._set_replicas()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._set_replicas()

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._placement.began(replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._placement.ended(replica_id.unique_id)

    async def choose_replicas(
        self, candidate_replicas: Sequence[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[Any]]:
        """Rank the replicas; Serve takes the first that has room, and calls again after a while if none has."""
        target = Target()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            target = next((one for one in pending_request.args if isinstance(one, Target)), target)
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if target.replica in replicas:
            return [[replicas[target.replica]]]
        return [[replicas[name]] for name in self._placement.order(target.key) if name in replicas]

    def _set_replicas(self) -> None:
        self._placement.set_replicas(replica_id.unique_id for replica_id in self.curr_replicas)
