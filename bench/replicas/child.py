"""The child process of `cluster`: serves with the settings of its argument, a JSON object, until its input ends.

It prints its port, then reads further settings from its standard input, a line of JSON each, and deploys them.
"""

import json
import socket
import sys
from typing import Final

import ray
from ray import serve

from photonlite.ray import build

HOST: Final = "127.0.0.1"
_STORE_BYTES: Final = 200 << 20


def main() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    ray.init(
        address="local",
        num_cpus=4,  # a replica of the bench reserves a part of one: the machine may have fewer
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
    )
    serve.start(http_options={"host": HOST, "port": port})
    serve.run(build(json.loads(sys.argv[1])))
    print("port", port, flush=True)
    for line in sys.stdin:
        serve.run(build(json.loads(line)))
        print("updated", flush=True)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
